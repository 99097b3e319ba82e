//! Chunks that a test writes and reads, and the history of that.

use std::time::Instant;

use amalgam_conformance::recording::{End, Operation, Recorder, Reply, Request};
use amalgam_node::ClusterClient;
use amalgam_node::cluster::chunks::{Action, ChunkError, Response};
use amalgam_node::cluster::ids::ChunkId;

use super::PATIENCE;

/// A chunk and the last values that were written: acknowledged, and tried.
pub type Chunk = (ChunkId, u64, u64);

/// Chunks and what was written last. One client at a time writes them.
pub struct Written {
    pub chunks: Vec<Chunk>,
    recorder: Recorder,
}

fn number_of(value: Vec<u8>) -> u64 {
    u64::from_le_bytes(value.try_into().expect("eight bytes"))
}

/// What an answer says of an operation. An error that is not named may come from the way to the
/// owner, and the operation may have been executed.
fn end_of(answer: &Result<Response, ChunkError>) -> End {
    match answer {
        Ok(Response::Value(value)) => {
            let found = number_of(value.clone()).to_string();
            End::Known(Reply::Hit { found, found_cas: None })
        }
        Ok(_) => End::Known(Reply::Stored),
        Err(ChunkError::NoChunk) => End::Known(Reply::NotFound),
        Err(_) => End::Unknown,
    }
}

impl Written {
    /// No chunks; their history goes to the file of this name.
    pub fn new(name: &str) -> Self {
        let source = format!("process test {name}");
        Self { chunks: Vec::new(), recorder: Recorder::new(name, &source) }
    }

    /// Creates `count` more chunks.
    pub fn create(&mut self, client: &mut ClusterClient, count: usize) {
        let (begin, most) = (Instant::now(), self.chunks.len() + count);
        while self.chunks.len() < most {
            assert!(begin.elapsed() < PATIENCE, "only {} were created", self.chunks.len());
            let called = self.recorder.now();
            let value = 0_u64.to_le_bytes().to_vec();
            let creations = vec![Action::Create(value); (most - self.chunks.len()).min(64)];
            for answer in client.call_all(creations) {
                if let Ok(Response::Created(id)) = answer {
                    let add = Request::Add { value: "0".to_owned() };
                    let mut creation = Operation::begun("client", &id.to_string(), add, called);
                    creation.returned = Some(self.recorder.now());
                    creation.end = End::Known(Reply::Stored);
                    self.recorder.record(creation);
                    self.chunks.push((id, 0, 0));
                }
            }
        }
    }

    /// Writes each chunk once more; how often that was acknowledged.
    pub fn write(&mut self, client: &mut ClusterClient) -> u64 {
        let mut succeeded = 0;
        for chunks in self.chunks.chunks_mut(32) {
            let (mut puts, mut begun) = (Vec::new(), Vec::new());
            for (id, _, tried) in chunks.iter_mut() {
                *tried += 1;
                let replace = Request::Replace { value: tried.to_string() };
                begun.push(self.recorder.begin("client", &id.to_string(), replace));
                puts.push(Action::Put(*id, tried.to_le_bytes().to_vec()));
            }
            let answers = client.call_all(puts);
            for (((_, acknowledged, tried), answer), number) in
                chunks.iter_mut().zip(answers).zip(begun)
            {
                self.recorder.end(number, end_of(&answer));
                if answer.is_ok() {
                    *acknowledged = *tried;
                    succeeded += 1;
                }
            }
        }
        succeeded
    }

    /// Reads each chunk: its value is the last write that was acknowledged, or a later one.
    pub fn check(&self, client: &mut ClusterClient) {
        let begin = Instant::now();
        for (id, acknowledged, tried) in &self.chunks {
            let value = loop {
                let number = self.recorder.begin("client", &id.to_string(), Request::Get);
                let answer = client.call(Action::Get(*id));
                self.recorder.end(number, end_of(&answer));
                match answer {
                    Ok(Response::Value(value)) => break number_of(value),
                    answer => {
                        let is_lost = matches!(answer, Err(ChunkError::NoChunk));
                        assert!(!is_lost && begin.elapsed() < PATIENCE, "{id}: {answer:?}");
                    }
                }
            };
            assert!((*acknowledged..=*tried).contains(&value), "{id}: {value}, not {acknowledged}");
        }
        self.recorder.conclude(Vec::new());
    }
}
