//! Records what clients of a run asked and were told, for checkers outside this project.

use std::collections::BTreeMap;

use amalgam_cluster::chunks::{Action, ChunkError, ItemVerb, Response};
use amalgam_cluster::overlay::Peer;
use amalgam_conformance::recording::{End, Operation, Reply, Request};
use amalgam_op::{Outcome, StoreMode};

/// The operations of a run in the form of [`amalgam_conformance::recording`], in milliseconds.
/// Chunks are recorded as items whose key is the id: a put is a `replace`.
#[derive(Debug, Default)]
pub struct Recorder {
    operations: Vec<Operation>,
    /// Writes that are not answered, by client and beginning; reads are recorded when they end.
    open: BTreeMap<(Peer, u64), Vec<usize>>,
}

fn text(value: &[u8]) -> String {
    match value.try_into() {
        Ok(number) => u64::from_le_bytes(number).to_string(),
        Err(_) => String::from_utf8_lossy(value).into_owned(),
    }
}

/// The key and the request of an action; None for locks, sessions and verbs that no workload uses.
/// The id of a chunk that is created is not known yet.
fn request(action: &Action) -> Option<(String, Request)> {
    let request = match action {
        Action::Create(value) => return Some((String::new(), Request::Add { value: text(value) })),
        Action::Get(_) => Request::Get,
        Action::Put(_, value) => Request::Replace { value: text(value) },
        Action::Delete(_) => Request::Delete,
        Action::Fenced(change) => match &change.value {
            Some(value) => Request::Replace { value: text(value) },
            None => Request::Delete,
        },
        Action::Item { op, .. } => {
            let request = match &op.verb {
                ItemVerb::Read => Request::Get,
                ItemVerb::Store(head, value) => {
                    let value = String::from_utf8_lossy(value).into_owned();
                    match head.mode {
                        StoreMode::Set => Request::Set { value },
                        StoreMode::Add => Request::Add { value },
                        _ => return None,
                    }
                }
                ItemVerb::Arithmetic(change) => {
                    Request::Incr { delta: change.delta, initial: change.initial }
                }
                ItemVerb::Delete(_) => Request::Delete,
                ItemVerb::Get(_) => return None,
            };
            return Some((String::from_utf8_lossy(&op.key).into_owned(), request));
        }
        _ => return None,
    };
    Some((action.id()?.to_string(), request))
}

/// What a client was told. An answer that no client should get leaves the end unknown.
fn end(action: &Action, result: &Result<Response, ChunkError>) -> End {
    let reply = match (action, result) {
        (_, Err(ChunkError::NoChunk)) => Reply::NotFound,
        (_, Err(ChunkError::Unavailable | ChunkError::Locked | ChunkError::Fenced)) => {
            return End::Refused;
        }
        (_, Ok(Response::Created(_))) => Reply::Stored,
        (_, Ok(Response::Value(value))) => Reply::Hit { found: text(value), found_cas: None },
        (_, Ok(Response::Ok)) => match request(action) {
            Some((_, Request::Delete)) => Reply::Deleted,
            _ => Reply::Stored,
        },
        (_, Ok(Response::Item(answer))) => match answer.outcome {
            Outcome::Hit(_) => {
                let value = answer.item.as_ref().map(|item| item.value.clone());
                let found = String::from_utf8_lossy(&value.unwrap_or_default()).trim().to_owned();
                Reply::Hit { found, found_cas: None }
            }
            Outcome::Stored(_) => Reply::Stored,
            Outcome::NotStored => Reply::NotStored,
            Outcome::Deleted => Reply::Deleted,
            Outcome::NotFound => Reply::NotFound,
            Outcome::Number(counted) => Reply::Number { number: counted.number },
            _ => return End::Unknown,
        },
        _ => return End::Unknown,
    };
    End::Known(reply)
}

impl Recorder {
    /// A client's operation began.
    pub(crate) fn begins(&mut self, client: Peer, action: &Action, began_ms: u64) {
        let Some((key, request)) = request(action).filter(|(_, request)| request.writes()) else {
            return;
        };
        self.open.entry((client, began_ms)).or_default().push(self.operations.len());
        let client = format!("{client:?}");
        self.operations.push(Operation::begun(&client, &key, request, began_ms));
    }

    /// A client's operation was answered. Operations of a client that are equal and began at the
    /// same time are one as good as the other.
    pub(crate) fn ends(
        &mut self,
        client: Peer,
        action: &Action,
        began_ms: u64,
        result: &Result<Response, ChunkError>,
        now_ms: u64,
    ) {
        let Some((key, request)) = request(action) else { return };
        let begun = self.open.entry((client, began_ms)).or_default();
        let operations = &mut self.operations;
        let is_it = |number: &usize| {
            operations[*number].request == request && operations[*number].key == key
        };
        let place = begun.iter().position(is_it);
        let number = match place {
            Some(place) => begun.swap_remove(place),
            None => {
                let client = format!("{client:?}");
                operations.push(Operation::begun(&client, &key, request, began_ms));
                operations.len() - 1
            }
        };
        if begun.is_empty() {
            self.open.remove(&(client, began_ms));
        }
        let operation = &mut self.operations[number];
        if let Ok(Response::Created(id)) = result {
            operation.key = id.to_string();
        }
        (operation.returned, operation.end) = (Some(now_ms), end(action, result));
    }

    /// The operations. A chunk whose creation was not answered is known by a read of its value.
    pub(crate) fn into_operations(mut self) -> Vec<Operation> {
        let value = |operation: &Operation| match (&operation.request, &operation.end) {
            (Request::Get, End::Known(Reply::Hit { found, .. })) => Some(found.clone()),
            _ => None,
        };
        let reads = self.operations.iter().filter_map(|one| Some((value(one)?, one.key.clone())));
        let keys: BTreeMap<String, String> = reads.collect();
        for operation in self.operations.iter_mut().filter(|one| one.key.is_empty()) {
            if let Request::Add { value } = &operation.request
                && let Some(key) = keys.get(value)
            {
                operation.key.clone_from(key);
            }
        }
        self.operations.retain(|operation| !operation.key.is_empty());
        self.operations
    }
}
