//! The thread that writes the log of backups, so that the event loop never waits for the disk.
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
//! 4. The thread says since when it has worked on one command ([`NodeState::log_stalled_ms`]): the
//!    lease is not renewed while that is too long.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_cluster::log::{Storage, StorageError};
use amalgam_op::IgnorePoison;

use crate::clock::boot_ms;
use crate::node_state::NodeState;

/// How long the end of a node waits for what its disk was told to write, and how often it looks.
const END_PATIENCE: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
enum Command {
    Create { segment: u32, bytes: u32 },
    Write { segment: u32, offset: u32, bytes: Vec<u8> },
    Sync,
}

/// Bytes that the event loop is about to read: the thread reads them, so that the system has them
/// in memory.
#[derive(Clone, Copy, Debug)]
struct Prefetch {
    segment: u32,
    offset: u32,
    bytes: u32,
}

#[derive(Debug, Default)]
struct Queue {
    commands: VecDeque<Arc<Command>>,
    /// They wait while there are commands: no acknowledgement waits for them.
    prefetches: VecDeque<Prefetch>,
    /// Number of commands that were executed.
    done: u64,
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
    /// Reads what is executed.
    reader: Box<dyn Storage>,
    /// Commands that are not known to be executed: what they write is read from here.
    pending: VecDeque<Arc<Command>>,
    /// Number of commands that are known to be executed.
    done: u64,
    unwritten_bytes: usize,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Starts the thread. `writer` and `reader` are the same storage, of which the reader is only
    /// read. The thread wakes the event loop when it has executed all commands.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub fn start(
        mut writer: Box<dyn Storage>,
        reader: Box<dyn Storage>,
        state: Arc<NodeState>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || own.run(writer.as_mut(), &state))?;
        let (pending, thread) = (VecDeque::new(), Some(thread));
        Ok(Self { shared, reader, pending, done: 0, unwritten_bytes: 0, thread })
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

impl Shared {
    /// The thread: executes commands until the end, then those that are left.
    fn run(&self, storage: &mut dyn Storage, state: &NodeState) {
        let mut queue = self.queue.lock().ignore_poison();
        loop {
            let command = queue.commands.front().cloned();
            let prefetch = queue.prefetches.front().copied();
            if command.is_none() && queue.is_ended {
                return;
            }
            if command.is_none() && prefetch.is_none() {
                queue = self.has_work.wait(queue).ignore_poison();
                continue;
            }
            drop(queue);
            state.set_log_busy_since_ms(boot_ms());
            let result = match (&command, prefetch) {
                (Some(command), _) => command.execute(storage),
                // Whoever reads the same bytes then finds the same error.
                (None, Some(Prefetch { segment, offset, bytes })) => {
                    let _ = storage.read(segment, offset, &mut vec![0; bytes as usize]);
                    Ok(())
                }
                (None, None) => Ok(()),
            };
            state.set_log_busy_since_ms(0);
            queue = self.queue.lock().ignore_poison();
            if command.is_none() {
                queue.prefetches.pop_front();
                continue;
            }
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
        self.reader.segments()
    }

    fn create(&mut self, segment: u32, bytes: u32) -> Result<(), StorageError> {
        self.push(Command::Create { segment, bytes })
    }

    fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> Result<(), StorageError> {
        self.push(Command::Write { segment, offset, bytes: bytes.to_vec() })
    }

    fn read(&mut self, segment: u32, offset: u32, bytes: &mut [u8]) -> Result<(), StorageError> {
        // After a failure, all that was handed over before stays readable.
        let _ = self.is_idle();
        let is_new = |command: &Arc<Command>| match **command {
            Command::Create { segment: new, .. } => new == segment,
            Command::Write { .. } | Command::Sync => false,
        };
        let wanted = u64::from(offset)..u64::from(offset) + bytes.len() as u64;
        let has_all = |command: &Arc<Command>| match &**command {
            Command::Write { segment: other, offset: at, bytes } => {
                let (begin, end) = (u64::from(*at), u64::from(*at) + bytes.len() as u64);
                *other == segment && begin <= wanted.start && wanted.end <= end
            }
            Command::Create { .. } | Command::Sync => false,
        };
        // A disk that hangs is not asked for what still waits to be written.
        if self.pending.iter().any(|command| is_new(command) || has_all(command)) {
            bytes.fill(0);
        } else {
            self.reader.read(segment, offset, bytes)?;
        }
        for command in &self.pending {
            let Command::Write { segment: other, offset: at, bytes: written } = &**command else {
                continue;
            };
            let begin = u64::from(*at).max(wanted.start);
            let end = (u64::from(*at) + written.len() as u64).min(wanted.end);
            if *other == segment && begin < end {
                let count = (end - begin) as usize;
                let from = (begin - u64::from(*at)) as usize;
                let to = (begin - wanted.start) as usize;
                bytes[to..to + count].copy_from_slice(&written[from..from + count]);
            }
        }
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

    fn prefetch(&mut self, segment: u32, offset: u32, bytes: u32) {
        let mut queue = self.shared.queue.lock().ignore_poison();
        queue.prefetches.push_back(Prefetch { segment, offset, bytes });
        drop(queue);
        self.shared.has_work.notify_one();
    }

    fn has_prefetched(&mut self) -> bool {
        self.shared.queue.lock().ignore_poison().prefetches.is_empty()
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

    /// Writes nothing while its gate is locked.
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
        let writer = Gated(Arc::clone(&medium), Arc::clone(&gate));
        let reader = Box::new(Arc::clone(&medium));
        let mut log = LogWriter::start(Box::new(writer), reader, state).expect("a thread");
        let read = |log: &mut LogWriter| {
            let mut bytes = [9; 8];
            log.read(3, 8, &mut bytes).map(|()| bytes)
        };
        let shut = gate.lock().ignore_poison();
        log.create(3, 100).expect("it is queued");
        log.write(3, 10, b"abc").expect("it is queued");
        log.write(3, 12, b"xyz").expect("it is queued");
        log.sync().expect("it is queued");
        assert_eq!(read(&mut log), Ok(*b"\0\0abxyz\0"));
        assert_eq!((log.is_idle(), log.unwritten_bytes()), (Ok(false), 6));
        assert_eq!(medium.lock().ignore_poison().segment(3), None, "nothing is executed");
        drop(shut);
        while log.is_idle() == Ok(false) {
            std::thread::sleep(END_PAUSE);
        }
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
