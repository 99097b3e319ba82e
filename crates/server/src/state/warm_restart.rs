//! Warm restart: items are written to a file at a graceful stop, and read by the next start.
//!
//! The file holds items, not an engine's memory: every engine can read it, with any memory limit,
//! on any machine.
//!
//! ```text
//! head      magic, version, engine's name, memory limit, buckets, first CAS id, checksum  64 bytes
//! block     length of its items, their number, checksum, the items                       repeated
//! item      lengths, marks, flags, expiry (Unix time), CAS id, key, value
//! end       a block without items, magic, number of items, checksum
//! ```
//!
//! Invariants:
//! 1. The file gets its name when it is complete, and is removed when its items are in memory: no
//!    start reads items from before the last graceful stop.
//! 2. Everything read is verified by checksums: a file that is truncated, foreign or of an unknown
//!    version leaves the index empty.
//! 3. Items that have expired by wall-clock time do not come back, and no CAS id is handed out
//!    twice.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use amalgam_index::{Configuration, Cursor, Found, Sink, Store, Worker};
use amalgam_op::{
    Delete, Get, HashSeed, IgnorePoison, ItemView, Key, MAX_KEY_BYTES, Now, Op, Outcome, StoreMode,
    Verb,
};

use crate::state::clock::Clock;

const MAGIC: &[u8; 8] = b"AMALGAM\n";
const END_MAGIC: &[u8; 8] = b"THE END\n";

/// The format version that this program writes, and the only one that it reads.
const VERSION: u32 = 1;

const HEAD_BYTES: usize = 64;
const BLOCK_HEAD_BYTES: usize = 16;
const ITEM_HEAD_BYTES: usize = 32;
const END_BYTES: usize = BLOCK_HEAD_BYTES + 24;

/// Bytes of items from which on a block is closed.
const BLOCK_BYTES: usize = 1 << 20;

/// The largest valid block: a full one and one item of the largest size.
const MAX_BLOCK_BYTES: usize = BLOCK_BYTES + (1 << 30) + 1024;

/// Blocks queued between the scanning and the writing thread.
const BLOCKS_AHEAD: usize = 8;

/// Buckets scanned between two quiescent states.
const SLICE_BUCKETS: usize = 256;

/// Refused files that are kept next to a memory file, at most.
const MAX_REFUSED_FILES: usize = 16;

/// Memory of a bucket of any engine in bytes, at least: a stated number of buckets that would take
/// more than the memory limit is not believed.
const MIN_BUCKET_BYTES: usize = 8;

/// The highest CAS id that is believed to have been handed out: 2^63 more are left.
const MAX_FIRST_CAS: u64 = 1 << 63;

/// How many items ahead of its store an item's bucket is prefetched.
const ITEMS_AHEAD: usize = 8;

// The marks of an item in the file.
const STALE: u8 = 1;
const WON: u8 = 2;
const FETCHED: u8 = 4;
const HAS_CAS: u8 = 8;

/// The result of writing or reading a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Items written or stored.
    pub items: u64,
    /// Items that were read but not stored: expired, or refused by the index.
    pub skipped: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// How long it took.
    pub duration: Duration,
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { items, skipped, bytes, duration } = self;
        let (mebibytes, seconds) = (bytes >> 20, duration.as_secs_f64());
        write!(formatter, "{items} items, {mebibytes} MiB, in {seconds:.1} s")?;
        match skipped {
            0 => Ok(()),
            count => write!(formatter, "; {count} were expired or did not fit"),
        }
    }
}

/// The checksum of a part of the file.
pub fn checksum(bytes: &[u8]) -> u64 {
    const SEED: HashSeed = HashSeed::new(VERSION as u64);
    SEED.hash(bytes)
}

/// An error about the content of the file.
fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Remembers the CAS id of the item that an operation shows.
#[derive(Default)]
struct CasProbe(Option<u64>);

impl Sink for CasProbe {
    fn hit(&mut self, _: usize, found: &Found<'_>) -> ControlFlow<()> {
        self.0 = found.item.cas;
        ControlFlow::Continue(())
    }

    fn miss(&mut self, _: usize) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// A CAS id above all that were handed out by workers that have ended. Creates and deletes an item
/// to get it.
fn next_cas<S: Store>(index: &S, worker: &mut S::Worker<'_>, now: &Now) -> u64 {
    // A key that the text protocol cannot express, and binary clients are unlikely to use.
    let key = Key::new(&[b'\n'; MAX_KEY_BYTES], index.seed());
    let mut probe = CasProbe::default();
    let create = Get { vivify: Some(0), wants_cas: true, ..Get::default() };
    worker.apply(&Op { key, verb: Verb::Get(create) }, now, &mut probe);
    worker.apply(&Op { key, verb: Verb::Delete(Delete::default()) }, now, &mut CasProbe::default());
    probe.0.map_or(1, |cas| cas.saturating_add(1))
}

/// Appends an item in the format of the file.
fn append_item(block: &mut Vec<u8>, item: &ItemView<'_>, now: &Now) {
    let marks = [
        (item.stale, STALE),
        (item.won, WON),
        (item.fetched, FETCHED),
        (item.cas.is_some(), HAS_CAS),
    ];
    let marks = marks.iter().filter(|(is, _)| *is).fold(0, |marks, (_, mark)| marks | mark);
    let expiry = match item.expiry.0 {
        0 => 0,
        seconds => now.epoch_unix_seconds + i64::from(seconds),
    };
    let value = item.value.as_bytes();
    block.extend_from_slice(&[item.key.len() as u8, marks, 0, 0]);
    block.extend_from_slice(&(value.len() as u32).to_le_bytes());
    block.extend_from_slice(&item.flags.to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(&expiry.to_le_bytes());
    block.extend_from_slice(&item.cas.unwrap_or(0).to_le_bytes());
    block.extend_from_slice(item.key);
    block.extend_from_slice(value);
}

/// The name of the file while it is being written.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Checks what `-e` names: nothing yet or a regular file, as opening a named pipe would wait for a
/// writer, in a folder where [`save`] can create one; and the `.meta` file that memcached keeps
/// next to a memory file of its own. If that is empty, memcached was interrupted while it wrote;
/// memcached refuses to start then, and so does this server.
///
/// # Errors
///
/// If any of it is not so; the message says what to do.
pub fn check_named_file(path: &Path) -> Result<(), String> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let name = path.display();
        return Err(format!(
            "-e: {name} is no regular file; name a file, which need not exist yet"
        ));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".meta");
    if fs::metadata(&name).is_ok_and(|metadata| metadata.len() == 0) {
        let name = Path::new(&name).display();
        return Err(format!("-e: {name} is empty: memcached did not finish writing it; remove it"));
    }
    let trial = partial(path);
    let _ = fs::remove_file(&trial);
    let created = File::options().write(true).create_new(true).open(&trial);
    created.and_then(|_| fs::remove_file(&trial)).map_err(|error| {
        let name = trial.display();
        format!(
            "-e: cannot create {name}, so the items could not be saved: {error}; name a file \
            in a folder where this user may write"
        )
    })
}

/// Writes the live items of an index to a file. Requires: no other thread changes the index; all
/// its other workers have ended.
///
/// # Errors
///
/// If the file cannot be written; an existing file stays.
pub fn save<S: Store>(
    index: &S,
    clock: &Clock,
    memory_bytes: usize,
    path: &Path,
) -> io::Result<Report> {
    use std::os::unix::fs::OpenOptionsExt;
    let start = Instant::now();
    let temporary = partial(path);
    let _ = fs::remove_file(&temporary);
    // Only for this user: values are as secret as the memory they come from.
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let mut worker = index.worker();
    let first_cas = next_cas(index, &mut worker, &clock.now());
    file.write_all(&head::<S>(memory_bytes, index.statistics().buckets, first_cas))?;
    let (full, to_write) = sync_channel::<(Vec<u8>, u32)>(BLOCKS_AHEAD);
    let (written, to_fill) = sync_channel::<Vec<u8>>(BLOCKS_AHEAD);
    let (items, bytes) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_blocks(file, to_write, written));
        let filler = Filler { full, empty: to_fill, block: Vec::new(), items: 0 };
        filler.fill(&mut worker, clock);
        writing.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))
    })?;
    rename_and_sync(&temporary, path)?;
    Ok(Report { items, skipped: 0, bytes, duration: start.elapsed() })
}

/// Renames a file so that the new name survives a loss of power, if the file system can promise it.
fn rename_and_sync(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        let file = to.display();
        log::warn!(file:%, error:%; "the file has its new name, which a loss of power may undo");
    }
    Ok(())
}

/// Gives a file that cannot be used another name, so that the next graceful stop does not overwrite
/// it. Returns the new name: the old one with `.refused` behind it, or with a number if that is
/// taken.
///
/// # Errors
///
/// If it is not a regular file, cannot be renamed, or there are [`MAX_REFUSED_FILES`] already.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let name = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(".refused");
        if number > 0 {
            name.push(format!(".{number}"));
        }
        PathBuf::from(name)
    };
    let free = (0..MAX_REFUSED_FILES).map(name).find(|name| fs::symlink_metadata(name).is_err());
    let free = free.ok_or_else(|| io::Error::other("there are too many refused files already"))?;
    rename_and_sync(path, &free)?;
    Ok(free)
}

fn head<S: Store>(memory_bytes: usize, buckets: u64, first_cas: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let name = &S::NAME.as_bytes()[..S::NAME.len().min(16)];
    head[16..16 + name.len()].copy_from_slice(name);
    head[32..40].copy_from_slice(&(memory_bytes as u64).to_le_bytes());
    head[40..48].copy_from_slice(&buckets.to_le_bytes());
    head[48..56].copy_from_slice(&first_cas.to_le_bytes());
    let sum = checksum(&head[..56]);
    head[56..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Scans the index and fills blocks with live items.
struct Filler {
    full: SyncSender<(Vec<u8>, u32)>,
    empty: Receiver<Vec<u8>>,
    block: Vec<u8>,
    items: u32,
}

impl Filler {
    /// Scans the whole index, or until the writing thread has failed, which reports its error
    /// itself.
    fn fill(mut self, worker: &mut impl Worker, clock: &Clock) {
        let now = clock.now();
        let mut cursor = Some(Cursor::START);
        while let Some(from) = cursor {
            let mut flow = ControlFlow::Continue(());
            cursor = worker.scan(from, SLICE_BUCKETS, &mut |item| {
                if now.is_live(item.expiry, item.generation) {
                    append_item(&mut self.block, item, &now);
                    self.items += 1;
                }
                if self.block.len() >= BLOCK_BYTES {
                    flow = self.send_block();
                }
                flow
            });
            worker.quiesce();
            if flow.is_break() {
                return;
            }
        }
        if self.items > 0 {
            let _ = self.send_block();
        }
    }

    /// Passes the current block on and takes an empty one. Breaks if the writing thread has ended.
    fn send_block(&mut self) -> ControlFlow<()> {
        let next = self.empty.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut self.block, next);
        match self.full.send((full, std::mem::take(&mut self.items))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

/// Writes blocks as they are filled, and returns the number of items and the size of the file.
fn write_blocks(
    mut file: File,
    full: Receiver<(Vec<u8>, u32)>,
    empty: SyncSender<Vec<u8>>,
) -> io::Result<(u64, u64)> {
    let (mut items, mut bytes) = (0, HEAD_BYTES as u64);
    for (mut block, count) in full {
        file.write_all(&block_head(block.len() as u32, count, checksum(&block)))?;
        file.write_all(&block)?;
        items += u64::from(count);
        bytes += (BLOCK_HEAD_BYTES + block.len()) as u64;
        block.clear();
        // If the queue of empty blocks is full, this one is not needed.
        let _ = empty.try_send(block);
    }
    file.write_all(&end(items))?;
    // Its name must not reach the disk before its content does.
    file.sync_all()?;
    Ok((items, bytes + END_BYTES as u64))
}

fn block_head(length: u32, items: u32, sum: u64) -> [u8; BLOCK_HEAD_BYTES] {
    let mut head = [0; BLOCK_HEAD_BYTES];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&items.to_le_bytes());
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

fn end(items: u64) -> [u8; END_BYTES] {
    let mut end = [0; END_BYTES];
    end[BLOCK_HEAD_BYTES..][..8].copy_from_slice(END_MAGIC);
    end[BLOCK_HEAD_BYTES + 8..][..8].copy_from_slice(&items.to_le_bytes());
    let sum = checksum(&end[BLOCK_HEAD_BYTES..][..16]);
    end[BLOCK_HEAD_BYTES + 16..].copy_from_slice(&sum.to_le_bytes());
    end
}

/// A file whose head and end are valid.
pub struct SavedItems {
    path: PathBuf,
    file: File,
    bytes: u64,
    items: u64,
    engine: Vec<u8>,
    memory_bytes: u64,
    buckets: u64,
    first_cas: u64,
}

impl SavedItems {
    /// Opens a file and verifies its head and end. None if it does not exist.
    ///
    /// # Errors
    ///
    /// If it cannot be read or cannot be trusted; the message says why.
    pub fn find(path: &Path) -> io::Result<Option<Self>> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = file.metadata()?.len();
        let mut head = [0; HEAD_BYTES];
        let is_short = bytes < (HEAD_BYTES + END_BYTES) as u64;
        let truncated = || invalid("it is truncated: its writer was interrupted");
        if bytes >= 8 {
            file.read_exact(&mut head[..8])?;
        }
        if head[..8] != *MAGIC {
            return Err(invalid("it was not written by this program"));
        }
        if is_short {
            return Err(truncated());
        }
        file.read_exact(&mut head[8..])?;
        let version = u32_at(&head, 8);
        if version != VERSION {
            return Err(invalid(format!(
                "it has format {version}, this program reads format {VERSION}"
            )));
        }
        if u64_at(&head, 56) != checksum(&head[..56]) {
            return Err(invalid("its head is damaged"));
        }
        let mut last = [0; END_BYTES];
        file.seek(SeekFrom::End(-(END_BYTES as i64)))?;
        file.read_exact(&mut last)?;
        let items = u64_at(&last, BLOCK_HEAD_BYTES + 8);
        if last != end(items) {
            return Err(truncated());
        }
        file.seek(SeekFrom::Start(HEAD_BYTES as u64))?;
        let engine = head[16..32].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            bytes,
            items,
            engine,
            memory_bytes: u64_at(&head, 32),
            buckets: u64_at(&head, 40),
            first_cas: u64_at(&head, 48),
        }))
    }

    /// The configuration of an index that these items will be loaded into.
    pub fn prepare<S: Store>(&self, mut configuration: Configuration) -> Configuration {
        configuration.first_cas = self.first_cas.clamp(1, MAX_FIRST_CAS);
        let has_room = configuration.memory_bytes as u64 >= self.memory_bytes;
        if has_room && self.engine == S::NAME.as_bytes() && self.buckets > 0 {
            // The table was this large in no more memory, so it need not grow to that size again.
            let most = configuration.memory_bytes / 2 / MIN_BUCKET_BYTES;
            let buckets = 1_usize.checked_shl(self.buckets.ilog2()).unwrap_or(0);
            let buckets = if buckets <= most { buckets } else { 0 };
            let least = configuration.tuning.buckets.unwrap_or(0);
            configuration.tuning.buckets = Some(buckets.max(least));
        }
        configuration
    }

    /// Stores the items in an index, with a number of threads, and removes the file. Requires: the
    /// index is empty and no other thread uses it.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is damaged; the index then holds some of the items.
    pub fn load<S: Store>(self, index: &S, clock: &Clock, threads: usize) -> io::Result<Report> {
        let start = Instant::now();
        let blocks = Blocks {
            source: Mutex::new(Source {
                file: BufReader::new(self.file),
                left_bytes: self.bytes - (HEAD_BYTES + END_BYTES) as u64,
            }),
            items: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            let load = || blocks.load_all(index, clock);
            let loaders: Vec<_> = (0..threads).map(|_| scope.spawn(load)).collect();
            let join = |loader: std::thread::ScopedJoinHandle<'_, io::Result<()>>| {
                loader.join().unwrap_or_else(|_| Err(invalid("a loading thread panicked")))
            };
            // All threads are joined before the first error is returned.
            loaders.into_iter().map(join).fold(Ok(()), Result::and)
        })?;
        let (items, skipped) = (blocks.items.into_inner(), blocks.skipped.into_inner());
        if items != self.items {
            return Err(invalid(format!("it holds {items} items instead of {}", self.items)));
        }
        fs::remove_file(&self.path)?;
        let duration = start.elapsed();
        Ok(Report { items: items - skipped, skipped, bytes: self.bytes, duration })
    }
}

/// The part of the file that is not read yet.
struct Source {
    file: BufReader<File>,
    /// Bytes of blocks left to read.
    left_bytes: u64,
}

/// The blocks of a file, shared by the loading threads.
struct Blocks {
    source: Mutex<Source>,
    items: AtomicU64,
    skipped: AtomicU64,
}

/// An item in the format of the file.
#[derive(Clone, Copy)]
struct SavedItem<'b> {
    marks: u8,
    flags: u32,
    /// The Unix time of the expiry; 0 for never.
    expiry: i64,
    cas: u64,
    key: &'b [u8],
    value: &'b [u8],
}

impl<'b> SavedItem<'b> {
    /// Takes the first item off `rest`.
    fn take(rest: &mut &'b [u8]) -> io::Result<Self> {
        let short = || invalid("it is damaged: an item is longer than its block");
        let (head, behind) = rest.split_at_checked(ITEM_HEAD_BYTES).ok_or_else(short)?;
        let (key, behind) = behind.split_at_checked(head[0].into()).ok_or_else(short)?;
        let (value, behind) =
            behind.split_at_checked(u32_at(head, 4) as usize).ok_or_else(short)?;
        *rest = behind;
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(invalid("it is damaged: an item has an invalid key"));
        }
        let (flags, expiry) = (u32_at(head, 8), u64_at(head, 16).cast_signed());
        Ok(Self { marks: head[1], flags, expiry, cas: u64_at(head, 24), key, value })
    }

    /// Stores the item. Returns whether it is in the index.
    fn store(&self, key: Key<'_>, worker: &mut impl Worker, now: &Now) -> bool {
        let sink = &mut CasProbe::default();
        if self.expiry != 0 && self.expiry <= now.epoch_unix_seconds + i64::from(now.seconds) {
            return false;
        }
        let new_cas = (self.marks & HAS_CAS != 0).then_some(self.cas);
        let store = amalgam_op::Store::new(StoreMode::Set, self.value, self.flags, self.expiry);
        let store = amalgam_op::Store { new_cas, wants_cas: new_cas.is_some(), ..store };
        let outcome = worker.apply(&Op { key, verb: Verb::Store(store) }, now, sink);
        if !matches!(outcome, Outcome::Stored { .. }) {
            return false;
        }
        if self.marks & STALE != 0 {
            let delete = Delete { marks_stale: true, new_cas, ..Delete::default() };
            worker.apply(&Op { key, verb: Verb::Delete(delete) }, now, sink);
        }
        if self.marks & (WON | FETCHED) != 0 {
            // The engine sets this mark when a read wins the right to recache: of a stale item, or
            // of one that expires.
            let is_won = self.marks & WON != 0;
            let get = Get {
                checks_stale: is_won,
                recache_below_seconds: is_won.then_some(i64::MAX),
                is_quiet_access: self.marks & FETCHED == 0,
                ..Get::default()
            };
            worker.apply(&Op { key, verb: Verb::Get(get) }, now, sink);
        }
        true
    }
}

impl Blocks {
    /// Reads the next block into `block` and returns its number of items; None at the end.
    fn next(&self, block: &mut Vec<u8>) -> io::Result<Option<u32>> {
        let mut source = self.source.lock().ignore_poison();
        if source.left_bytes == 0 {
            return Ok(None);
        }
        let result = source.next(block);
        if result.is_err() {
            // The other threads need not go on.
            source.left_bytes = 0;
        }
        let (items, sum) = result?;
        drop(source);
        match checksum(block) == sum {
            true => Ok(Some(items)),
            false => Err(invalid("it is damaged: a checksum is wrong")),
        }
    }

    /// Loads blocks until none is left.
    fn load_all<S: Store>(&self, index: &S, clock: &Clock) -> io::Result<()> {
        let mut worker = index.worker();
        let mut block = Vec::new();
        while let Some(count) = self.next(&mut block)? {
            let now = clock.now();
            let mut rest = &block[..];
            let mut items = Vec::with_capacity(rest.len() / ITEM_HEAD_BYTES);
            while !rest.is_empty() {
                let item = SavedItem::take(&mut rest)?;
                items.push((Key::new(item.key, index.seed()), item));
            }
            if items.len() != count as usize {
                return Err(invalid(
                    "it is damaged: a block does not hold the number of items that it states",
                ));
            }
            let mut skipped = 0;
            for (position, (key, item)) in items.iter().enumerate() {
                if let Some((ahead, _)) = items.get(position + ITEMS_AHEAD) {
                    worker.prefetch(ahead);
                }
                skipped += u64::from(!item.store(*key, &mut worker, &now));
            }
            worker.quiesce();
            self.items.fetch_add(items.len() as u64, Ordering::Relaxed);
            self.skipped.fetch_add(skipped, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Source {
    /// Reads the next block into `block`, and returns its number of items and its checksum.
    fn next(&mut self, block: &mut Vec<u8>) -> io::Result<(u32, u64)> {
        let mut head = [0; BLOCK_HEAD_BYTES];
        self.file.read_exact(&mut head)?;
        let length = u32_at(&head, 0) as usize;
        let total = (BLOCK_HEAD_BYTES + length) as u64;
        if length > MAX_BLOCK_BYTES || total > self.left_bytes {
            return Err(invalid("it is damaged: a block is longer than the file"));
        }
        self.left_bytes -= total;
        block.resize(length, 0);
        self.file.read_exact(block)?;
        Ok((u32_at(&head, 4), u64_at(&head, 8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_index::Engine;
    use amalgam_index::model::Model;

    fn store(index: &Model, clock: &Clock, key: &[u8], value: &[u8], expiry: i64) {
        let verb = Verb::Store(amalgam_op::Store::new(StoreMode::Set, value, 7, expiry));
        let op = Op { key: Key::new(key, index.seed()), verb };
        index.worker().apply(&op, &clock.now(), &mut CasProbe::default());
    }

    fn open() -> Model {
        Model::open(&Configuration::default()).unwrap()
    }

    /// Writes `bytes` to a file and loads it.
    fn load(path: &Path, bytes: &[u8], clock: &Clock) -> io::Result<Report> {
        fs::write(path, bytes).unwrap();
        let saved = SavedItems::find(path)?.expect("it was written");
        saved.load(&open(), clock, 2)
    }

    /// Saves a few items, one of which expires within the hour; returns the path and the bytes.
    fn written(name: &str, clock: &Clock) -> (PathBuf, Vec<u8>) {
        let index = open();
        for number in 0..5_u8 {
            store(&index, clock, &[b'k', number], &[number; 40], 0);
        }
        store(&index, clock, b"short-lived", b"x", 3000);
        let name = format!("amalgam-restart-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        assert_eq!(save(&index, clock, 1 << 20, &path).unwrap().items, 6);
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    }

    #[test]
    fn expired_items_are_skipped_and_the_file_is_read_once() {
        let clock = Clock::new(2);
        let (path, bytes) = written("once", &clock);
        let report = load(&path, &bytes, &clock).unwrap();
        assert_eq!((report.items, report.skipped), (6, 0));
        assert!(SavedItems::find(&path).unwrap().is_none());
        clock.skip_ahead(3600);
        let report = load(&path, &bytes, &clock).unwrap();
        assert_eq!((report.items, report.skipped), (5, 1));
    }

    #[test]
    fn sizes_in_the_head_are_not_believed_beyond_reason() {
        let clock = Clock::new(2);
        let (path, mut bytes) = written("sizes", &clock);
        bytes[40..48].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        bytes[48..56].copy_from_slice(&u64::MAX.to_le_bytes());
        let sum = checksum(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let saved = SavedItems::find(&path).unwrap().unwrap();
        let given = Configuration::default();
        let prepared = saved.prepare::<Model>(given.clone());
        assert_eq!(prepared.tuning.buckets.unwrap_or(0), given.tuning.buckets.unwrap_or(0));
        assert!(prepared.first_cas < u64::MAX / 2 + 2);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn refused_files_are_kept_under_other_names() {
        let path = std::env::temp_dir().join(format!("amalgam-aside-{}", std::process::id()));
        let aside: Vec<_> = (0..3_u8)
            .map(|number| {
                fs::write(&path, [number]).unwrap();
                set_aside(&path).unwrap()
            })
            .collect();
        assert!(!path.exists());
        for (number, name) in aside.iter().enumerate() {
            assert_eq!(fs::read(name).unwrap(), [number as u8]);
            fs::remove_file(name).unwrap();
        }
        assert!(set_aside(&path).is_err(), "there is no file");
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let path = std::env::temp_dir().join(format!("amalgam-named-{}", std::process::id()));
        assert_eq!(check_named_file(&path), Ok(()));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        assert!(check_named_file(&path).is_err_and(|error| error.contains("no regular file")));
        fs::remove_file(&path).unwrap();
        let meta = path.with_extension("meta");
        fs::write(&meta, b"").unwrap();
        assert!(check_named_file(&path).is_err_and(|error| error.contains("remove it")));
        fs::remove_file(&meta).unwrap();
        assert!(!partial(&path).exists(), "the trial leaves nothing");
        let nowhere = path.join("items");
        assert!(check_named_file(&nowhere).is_err_and(|error| error.contains("cannot create")));
    }

    #[test]
    fn damaged_files_are_refused() {
        let clock = Clock::new(2);
        let (path, bytes) = written("damaged", &clock);
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x41;
            assert!(load(&path, &damaged, &clock).is_err(), "byte {place} of {}", bytes.len());
            assert!(load(&path, &bytes[..place], &clock).is_err(), "{place} bytes");
        }
        let reason = |bytes: &[u8]| load(&path, bytes, &clock).unwrap_err().to_string();
        assert_eq!(reason(b"PK\x03\x04 something else"), "it was not written by this program");
        assert!(reason(&bytes[..bytes.len() - 1]).contains("truncated"));
        let mut newer = bytes;
        newer[8] = 9;
        assert_eq!(reason(&newer), "it has format 9, this program reads format 1");
        fs::remove_file(&path).unwrap();
    }
}
