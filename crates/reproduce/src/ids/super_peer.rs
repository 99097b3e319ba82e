//! A super peer that answers lookups of owners over a socket, and the client of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use amalgam_cluster::ids::{ChunkId, IdRange};
use amalgam_cluster::ranges::{Placement, Range, RangeMap};
use anyhow::{Context, ensure};

use crate::ids::moves::node;
use amalgam_bench::measure::{allowed_cores, pin_to};

/// A request is an id. The answer has the first and the last id of its range, the owner and
/// padding; an owner of 0 means that the id has none.
const REQUEST_BYTES: usize = 8;
const ANSWER_BYTES: usize = 24;
/// The timeout of a read, which is longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves one connection until it is closed.
pub struct SuperPeer {
    pub address: SocketAddr,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl SuperPeer {
    pub fn start(map: RangeMap) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let thread = std::thread::spawn(move || {
            pin_to(&allowed_cores(), 1);
            let (stream, _) = listener.accept()?;
            serve(stream, &map)
        });
        Ok(Self { address, thread })
    }

    /// Waits until a super peer ends whose client has closed the connection.
    pub fn join(self) -> anyhow::Result<()> {
        self.thread.join().ok().context("the super peer panicked")?
    }
}

fn serve(mut stream: TcpStream, map: &RangeMap) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE * 6))?;
    loop {
        let mut request = [0; REQUEST_BYTES];
        match stream.read_exact(&mut request) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let id = ChunkId::from_bits(u64::from_le_bytes(request))?;
        let mut answer = [0; ANSWER_BYTES];
        if let Some(range) = map.find(id) {
            answer[..8].copy_from_slice(&range.ids.first().bits().to_le_bytes());
            answer[8..16].copy_from_slice(&range.ids.last().bits().to_le_bytes());
            answer[16..18].copy_from_slice(&range.placement.owner().get().to_le_bytes());
        }
        stream.write_all(&answer)?;
    }
}

/// A client of a super peer, with one request in flight.
pub struct Client(TcpStream);

impl Client {
    pub fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Asks for the range of an id, which must have an owner.
    pub fn ask(&mut self, id: ChunkId) -> anyhow::Result<Range> {
        self.0.write_all(&id.bits().to_le_bytes())?;
        let mut answer = [0; ANSWER_BYTES];
        self.0.read_exact(&mut answer)?;
        let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("8 bytes"));
        let owner = word(16) as u16;
        ensure!(owner != 0, "{id} has no owner");
        let ids = IdRange::new(ChunkId::from_bits(word(0))?, ChunkId::from_bits(word(8))?)?;
        Ok(Range { ids, placement: Placement::of_owner(node(owner)) })
    }
}
