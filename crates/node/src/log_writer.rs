//! The thread that reads and writes the log of backups, so that the event loop never waits for the
//! disk.
//!
//! The event loop owns [`LogWriter`] and calls it; the thread owns the storage. A call that changes
//! the storage becomes a command in a queue, and the thread executes the commands in their
//! order. Whoever acknowledges something first asks [`LogWriter::is_idle`].
//!
//! Invariants of this module:
//! 1. What is on the disk is always what a prefix of the commands leaves there, as if the process
//!    had written it itself and stopped at that point.
//! 2. After a command failed none is executed.
//! 3. The log bounds what waits: it begins one commit at a time, and accepts nothing while too many
//!    bytes are unwritten ([`LogWriter::unwritten_bytes`]).
//! 4. The event loop never reads the storage: what it asks for is read by the thread and delivered
//!    in a [`Loading`], with everything that was handed over before.
//! 5. The thread says since when it has worked on one command ([`NodeState::log_stalled_ms`]): the
//!    lease is not renewed while that is too long.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_cluster::log::{Loading, Storage, StorageError};
use amalgam_op::IgnorePoison;

use crate::clock::boot_ms;
use crate::node_state::NodeState;

/// How long the end of a node waits for what its disk was told to write, and how often it looks.
const END_PATIENCE: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(1);

/// After this many commands the loads that wait have their turn, with that many bytes: a node that
/// writes all the time still has to take over, and to clean its log.
const COMMANDS_A_TURN: u64 = 8;
const LOADS_A_TURN_BYTES: u64 = 1 << 20;

#[derive(Debug)]
enum Command {
    Create { segment: u32, bytes: u32 },
    Write { segment: u32, offset: u32, bytes: Vec<u8> },
    Sync,
}

/// Bytes that the event loop asked for.
#[derive(Debug)]
struct Load {
    segment: u32,
    offset: u32,
    bytes: u32,
    /// What was still to be written when it asked: the bytes are those that these leave.
    over: Vec<Arc<Command>>,
    into: Loading,
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Arc<Command>>,
    /// They wait while there are commands: no acknowledgement waits for them.
    loads: VecDeque<Load>,
    /// Number of commands that were executed.
    done: u64,
    /// Number of commands that were executed since the last turn of loads, and bytes that are left
    /// of their present one.
    since_turn: u64,
    turn_bytes: u64,
    failed: Option<StorageError>,
    is_ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the thread.
    has_work: Condvar,
}

/// The event loop's side of the log's storage. Not thread-safe: one thread calls it.
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<Shared>,
    /// The segments that the storage had at the start.
    segments: Result<Vec<(u32, u32)>, StorageError>,
    /// Commands that are not known to be executed: what they write is read from here.
    pending: VecDeque<Arc<Command>>,
    /// Number of commands that are known to be executed.
    done: u64,
    unwritten_bytes: usize,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Starts the thread. It wakes the event loop when it has executed all commands, and when it
    /// has loaded everything that was asked for.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn start(mut storage: Box<dyn Storage>, state: Arc<NodeState>) -> io::Result<Self> {
        let segments = storage.segments();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || own.run(storage.as_mut(), &state))?;
        let (pending, thread) = (VecDeque::new(), Some(thread));
        Ok(Self { shared, segments, pending, done: 0, unwritten_bytes: 0, thread })
    }

    fn push(&mut self, command: Command) -> Result<(), StorageError> {
        let command = Arc::new(command);
        let mut queue = self.shared.queue.lock().ignore_poison();
        if let Some(error) = queue.failed {
            return Err(error);
        }
        queue.commands.push_back(Arc::clone(&command));
        drop(queue);
        self.shared.has_work.notify_one();
        self.unwritten_bytes += command.bytes();
        self.pending.push_back(command);
        Ok(())
    }
}

impl Command {
    fn bytes(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Create { .. } | Self::Sync => 0,
        }
    }

    fn execute(&self, storage: &mut dyn Storage) -> Result<(), StorageError> {
        match self {
            Self::Create { segment, bytes } => storage.create(*segment, *bytes),
            Self::Write { segment, offset, bytes } => storage.write(*segment, *offset, bytes),
            Self::Sync => storage.sync(),
        }
    }
}

impl Load {
    /// Reads the bytes, and applies what was to be written over them.
    fn execute(&self, storage: &mut dyn Storage) {
        if !self.into.is_wanted() {
            return;
        }
        let mut bytes = vec![0; self.bytes as usize];
        let result = storage.read(self.segment, self.offset, &mut bytes);
        self.into.deliver(result.map(|()| self.applied(bytes)));
    }

    fn wanted(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.bytes)
    }

    /// Whether one of the commands leaves all of the bytes, or begins the segment.
    fn is_pending(&self) -> bool {
        let wanted = self.wanted();
        self.over.iter().any(|command| match &**command {
            Command::Write { offset, bytes, .. } => {
                let (begin, end) = (u64::from(*offset), u64::from(*offset) + bytes.len() as u64);
                begin <= wanted.start && wanted.end <= end
            }
            Command::Create { .. } => true,
            Command::Sync => false,
        })
    }

    fn applied(&self, mut into: Vec<u8>) -> Vec<u8> {
        let wanted = self.wanted();
        for command in &self.over {
            let Command::Write { offset, bytes, .. } = &**command else { continue };
            let written = u64::from(*offset)..u64::from(*offset) + bytes.len() as u64;
            let begin = written.start.max(wanted.start);
            let end = written.end.min(wanted.end);
            if begin < end {
                let from = (begin - written.start) as usize..(end - written.start) as usize;
                let to = (begin - wanted.start) as usize..(end - wanted.start) as usize;
                into[to].copy_from_slice(&bytes[from]);
            }
        }
        into
    }
}

/// What the thread does next.
enum Work {
    Execute(Arc<Command>),
    Load(Load),
}

impl Queue {
    fn next(&mut self) -> Option<Work> {
        let may_load = self.commands.is_empty() || self.turn_bytes > 0;
        if may_load && let Some(load) = self.loads.pop_front() {
            self.turn_bytes = self.turn_bytes.saturating_sub(load.bytes.into());
            return Some(Work::Load(load));
        }
        self.since_turn += 1;
        if self.since_turn >= COMMANDS_A_TURN {
            (self.since_turn, self.turn_bytes) = (0, LOADS_A_TURN_BYTES);
        }
        self.commands.front().cloned().map(Work::Execute)
    }
}

impl Shared {
    /// The thread: executes commands until the end, then those that are left.
    fn run(&self, storage: &mut dyn Storage, state: &NodeState) {
        let mut queue = self.queue.lock().ignore_poison();
        loop {
            if queue.is_ended {
                queue.loads.clear();
            }
            let Some(work) = queue.next() else {
                if queue.is_ended {
                    return;
                }
                queue = self.has_work.wait(queue).ignore_poison();
                continue;
            };
            drop(queue);
            state.set_log_busy_since_ms(boot_ms());
            let executed = match work {
                Work::Load(load) => {
                    load.execute(storage);
                    None
                }
                Work::Execute(command) => Some(command.execute(storage)),
            };
            state.set_log_busy_since_ms(0);
            queue = self.queue.lock().ignore_poison();
            let Some(result) = executed else {
                if queue.loads.is_empty() {
                    state.wake();
                }
                continue;
            };
            match result {
                Ok(()) => drop(queue.commands.pop_front()),
                Err(error) => {
                    queue.failed = Some(error);
                    queue.commands.clear();
                }
            }
            queue.done += 1;
            if queue.commands.is_empty() {
                state.wake();
            }
        }
    }
}

impl Storage for LogWriter {
    fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
        self.segments.clone()
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.push(Command::Create { segment, bytes })
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        self.push(Command::Write { segment, offset, bytes: bytes.to_vec() })
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        let length = u32::try_from(bytes.len()).map_err(|_| StorageError::Broken)?;
        bytes.copy_from_slice(self.load(segment, offset, length).wait().as_ref().map_err(|e| *e)?);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.push(Command::Sync)
    }

    fn is_idle(&mut self) -> Result<bool, StorageError> {
        if self.pending.is_empty() {
            return Ok(true);
        }
        let queue = self.shared.queue.lock().ignore_poison();
        if let Some(error) = queue.failed {
            return Err(error);
        }
        let done = queue.done;
        drop(queue);
        while self.done < done {
            self.done += 1;
            let command = self.pending.pop_front();
            self.unwritten_bytes -= command.map_or(0, |command| command.bytes());
        }
        Ok(self.pending.is_empty())
    }

    fn unwritten_bytes(&self) -> usize {
        self.unwritten_bytes
    }

    fn load(&mut self, segment: u32, offset: u32, bytes: u32) -> Loading {
        // After a failure, all that was handed over before stays readable.
        let _ = self.is_idle();
        let is_of = |command: &&Arc<Command>| match ***command {
            Command::Create { segment: of, .. } | Command::Write { segment: of, .. } => {
                of == segment
            }
            Command::Sync => false,
        };
        let over = self.pending.iter().filter(is_of).cloned().collect();
        let into = Loading::default();
        let load = Load { segment, offset, bytes, over, into: into.clone() };
        // A disk that hangs is not asked for what still waits to be written.
        if load.is_pending() {
            into.deliver(Ok(load.applied(vec![0; bytes as usize])));
            return into;
        }
        self.shared.queue.lock().ignore_poison().loads.push_back(load);
        self.shared.has_work.notify_one();
        into
    }
}

impl Drop for LogWriter {
    /// Waits until the folder can be used again, unless the disk hangs: nothing that still waits
    /// was acknowledged.
    fn drop(&mut self) {
        self.shared.queue.lock().ignore_poison().is_ended = true;
        self.shared.has_work.notify_one();
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + END_PATIENCE;
        while !thread.is_finished() {
            if Instant::now() >= end {
                return log::error!("the disk of the log does not answer: its thread is left");
            }
            std::thread::sleep(END_PAUSE);
        }
        if thread.join().is_err() {
            log::error!("the thread of the log panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::log::MemoryStorage;

    use super::*;

    type Medium = Arc<Mutex<MemoryStorage>>;

    /// Reads and writes nothing while its gate is locked.
    #[derive(Debug)]
    struct Gated(Medium, Arc<Mutex<()>>);

    impl Storage for Gated {
        fn segments(&mut self) -> Result<Vec<(u32, u32)>, StorageError> {
            self.0.segments()
        }

        fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
            let _open = self.1.lock().ignore_poison();
            self.0.create(segment, bytes)
        }

        fn write(&mut self, segment: u32, at: u32, bytes: &[u8]) -> Result<(), StorageError> {
            let _open = self.1.lock().ignore_poison();
            self.0.write(segment, at, bytes)
        }

        fn read(&mut self, segment: u32, at: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
            let _open = self.1.lock().ignore_poison();
            self.0.read(segment, at, bytes)
        }

        fn sync(&mut self) -> Result<(), StorageError> {
            self.0.sync()
        }
    }

    #[test]
    fn reads_see_what_waits_and_what_could_not_be_written() {
        let (medium, gate) = (Medium::default(), Arc::new(Mutex::new(())));
        let state = Arc::new(NodeState::new(Arc::default()).expect("a descriptor"));
        medium.lock().ignore_poison().create(5, 8).expect("memory");
        let writer = Gated(Arc::clone(&medium), Arc::clone(&gate));
        let mut log = LogWriter::start(Box::new(writer), state).expect("a thread");
        assert_eq!(log.segments(), Ok(vec![(5, 8)]));
        let read = |log: &mut LogWriter| {
            let mut bytes = [9; 8];
            log.read(3, 8, &mut bytes).map(|()| bytes)
        };
        let shut = gate.lock().ignore_poison();
        log.create(3, 100).expect("it is queued");
        log.write(3, 10, b"abc").expect("it is queued");
        log.write(3, 12, b"xyz").expect("it is queued");
        log.write(5, 2, b"early").expect("it is queued");
        log.sync().expect("it is queued");
        assert_eq!(read(&mut log), Ok(*b"\0\0abxyz\0"));
        assert_eq!((log.is_idle(), log.unwritten_bytes()), (Ok(false), 11));
        assert_eq!(medium.lock().ignore_poison().segment(3), None, "nothing is executed");
        // What is asked for holds what was to be written then.
        let (loading, forgotten) = (log.load(5, 0, 8), log.load(5, 0, 8));
        drop(forgotten);
        assert_eq!(loading.result(), None, "the medium hangs");
        drop(shut);
        while log.is_idle() == Ok(false) {
            std::thread::sleep(END_PAUSE);
        }
        assert_eq!(loading.wait().as_deref(), Ok(&b"\0\0early\0"[..]));
        assert_eq!(
            log.load(9, 0, 8).wait(),
            &Err(StorageError::Broken),
            "there is no such segment"
        );
        assert_eq!((log.is_idle(), log.unwritten_bytes()), (Ok(true), 0));
        assert_eq!(read(&mut log), Ok(*b"\0\0abxyz\0"));
        assert_eq!(medium.lock().ignore_poison().unsynced(), 0);
        medium.lock().ignore_poison().is_read_only = true;
        log.write(3, 8, b"!").expect("it is queued");
        while log.is_idle() == Ok(false) {
            std::thread::sleep(END_PAUSE);
        }
        assert_eq!(log.is_idle(), Err(StorageError::ReadOnly));
        assert_eq!(log.sync(), Err(StorageError::ReadOnly), "nothing follows a failure");
        assert_eq!(read(&mut log), Ok(*b"!\0abxyz\0"));
    }
}
