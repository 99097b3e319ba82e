//! `--engine external:LIB.so`: anybody's map, through `include/amalgam_map.h`.
//!
//! Invariants of this module:
//! 1. A library that cannot be used is refused before anything is measured, with what is wrong.
//! 2. Before a map is measured, another of the same library has shown that it stores, reads,
//!    replaces and deletes, and that as many threads can enter as will.
//! 3. No more bytes are read from a buffer than it has, whatever length a library answers.

mod interface;

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Barrier;

use amalgam_bench::driver::engines::Entry;
use amalgam_bench::driver::{EngineUnderTest, Runner};
use amalgam_bench::target::{ReadSink, Target, TargetWorker};
use amalgam_index::{Configuration, Statistics};
use amalgam_op::Key;
use anyhow::{Context, bail, ensure};

use interface::{Answer, ForeignKey, Functions, MISS, Settings};

/// What names of engines begin with that are libraries.
pub const PREFIX: &str = "external:";

/// Rows for those of `names` that are libraries.
pub fn entries(names: &[String]) -> Vec<Entry> {
    let libraries = names.iter().filter(|name| name.starts_with(PREFIX));
    let entry = |name: &String| Entry {
        // As long as the process lives, and there are as many as somebody typed.
        name: name.clone().leak(),
        about: "a map behind amalgam_map.h",
        is_read_only: false,
        open,
        variants: &[],
    };
    libraries.map(entry).collect()
}

fn open(name: &str, configuration: &Configuration) -> anyhow::Result<Box<dyn Runner>> {
    ensure!(!configuration.evicts, "maps behind amalgam_map.h have no memory limit");
    let path = name.strip_prefix(PREFIX).context("the name of a library")?;
    let functions = interface::load(Path::new(path))?;
    check(functions, configuration.workers).with_context(|| path.to_owned())?;
    let map = External::create(functions, configuration)?;
    Ok(Box::new(EngineUnderTest::new(map, configuration)))
}

/// A map behind the C interface.
pub struct External {
    functions: Functions,
    map: NonNull<c_void>,
}

// SAFETY: rule 1 of the header: a map may be used by any thread.
unsafe impl Send for External {}
// SAFETY: the same: by several at once.
unsafe impl Sync for External {}

const ERROR_BYTES: usize = 512;

impl External {
    fn create(functions: Functions, configuration: &Configuration) -> anyhow::Result<Self> {
        let settings = Settings {
            settings_bytes: size_of::<Settings>() as u64,
            expected_items: configuration.expected_items as u64,
            threads: configuration.workers as u64,
            memory_bytes: configuration.memory_bytes as u64,
        };
        let mut error = [0u8; ERROR_BYTES];
        // SAFETY: as the header declares it; the text ends before the last byte, which stays 0.
        let map = unsafe {
            (functions.create)(&raw const settings, error.as_mut_ptr().cast(), ERROR_BYTES - 1)
        };
        let Some(map) = NonNull::new(map) else {
            let text = CStr::from_bytes_until_nul(&error).map(CStr::to_string_lossy);
            let text = text.unwrap_or_default();
            bail!(
                "amalgam_map_create: {}",
                if text.is_empty() { "no reason given" } else { &text }
            );
        };
        Ok(Self { functions, map })
    }

    /// The calling thread's access, unless the library refuses it.
    fn enter(&self) -> Option<ExternalThread<'_>> {
        // SAFETY: our map.
        let thread = NonNull::new(unsafe { (self.functions.enter)(self.map.as_ptr()) })?;
        Some(ExternalThread { map: self, thread, keys: Vec::new(), answers: Vec::new() })
    }
}

impl Drop for External {
    fn drop(&mut self) {
        // SAFETY: our map; threads borrow it, so all have left.
        unsafe { (self.functions.destroy)(self.map.as_ptr()) }
    }
}

impl Target for External {
    type Worker<'s> = ExternalWorker<'s>;

    fn open(_configuration: &Configuration) -> anyhow::Result<Self> {
        bail!("a library's map is opened by its path")
    }

    fn worker(&self) -> ExternalWorker<'_> {
        ExternalWorker { thread: self.enter(), values: Vec::new() }
    }

    fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        // SAFETY: our map.
        (statistics.items, statistics.memory.used) = unsafe {
            let map = self.map.as_ptr();
            ((self.functions.items)(map), (self.functions.memory)(map))
        };
        statistics
    }
}

/// A thread that entered.
struct ExternalThread<'m> {
    map: &'m External,
    thread: NonNull<c_void>,
    keys: Vec<ForeignKey>,
    answers: Vec<Answer>,
}

impl ExternalThread<'_> {
    /// The value's first bytes in `room`, and how many there are.
    fn get(&mut self, key: &Key<'_>, room: &mut [u8]) -> Option<usize> {
        let key = foreign(key);
        let mut answer = Answer { bytes: room.as_mut_ptr(), room: room.len(), length: MISS };
        // SAFETY: our thread, and a key and an answer that last as long as the call.
        let found = unsafe {
            (self.map.functions.get)(self.thread.as_ptr(), &raw const key, &raw mut answer)
        };
        (found != 0 && answer.length != MISS).then(|| answer.length.min(room.len()))
    }

    /// Reads all keys into parts of `room` as long as each other, and says which were found.
    fn get_batch(
        &mut self,
        keys: &[Key<'_>],
        room: &mut [u8],
        mut answer: impl FnMut(usize, &[u8]),
    ) {
        let part = room.len() / keys.len().max(1);
        let Some(get_batch) = self.map.functions.get_batch.filter(|_| keys.len() > 1) else {
            for (position, key) in keys.iter().enumerate() {
                if let Some(length) = self.get(key, &mut room[..part]) {
                    answer(position, &room[..length]);
                }
            }
            return;
        };
        self.keys.clear();
        self.keys.extend(keys.iter().map(foreign));
        self.answers.clear();
        let start = room.as_mut_ptr();
        let empty = |position: usize| {
            let bytes = start.wrapping_add(position * part);
            Answer { bytes, room: part, length: MISS }
        };
        self.answers.extend((0..keys.len()).map(empty));
        let (keys, answers) = (self.keys.as_ptr(), self.answers.as_mut_ptr());
        // SAFETY: our thread; as many keys and answers as said, and room as long as said.
        unsafe { get_batch(self.thread.as_ptr(), keys, self.keys.len(), answers) };
        for (position, found) in self.answers.iter().enumerate() {
            if found.length != MISS {
                let length = found.length.min(found.room);
                answer(position, &room[position * part..][..length]);
            }
        }
    }

    fn put(&mut self, key: &Key<'_>, value: &[u8]) -> bool {
        let key = foreign(key);
        let put = self.map.functions.put;
        // SAFETY: our thread, and a key and a value that last as long as the call.
        unsafe { put(self.thread.as_ptr(), &raw const key, value.as_ptr(), value.len()) != 0 }
    }

    fn delete(&mut self, key: &Key<'_>) -> bool {
        let key = foreign(key);
        // SAFETY: our thread, and a key that lasts as long as the call.
        unsafe { (self.map.functions.delete)(self.thread.as_ptr(), &raw const key) != 0 }
    }
}

impl Drop for ExternalThread<'_> {
    fn drop(&mut self) {
        // SAFETY: our thread's last call.
        unsafe { (self.map.functions.leave)(self.thread.as_ptr()) }
    }
}

fn foreign(key: &Key<'_>) -> ForeignKey {
    ForeignKey { bytes: key.bytes().as_ptr(), length: key.bytes().len(), hash: key.hash() }
}

/// One thread's access in a measurement. Where the library refuses the thread after all, its reads
/// miss and its writes are refused, and the result says so.
pub struct ExternalWorker<'m> {
    thread: Option<ExternalThread<'m>>,
    /// Room for the values of a batch.
    values: Vec<u8>,
}

impl TargetWorker for ExternalWorker<'_> {
    #[inline]
    fn get_batch(&mut self, keys: &[Key<'_>], sink: &mut ReadSink) {
        let Some(thread) = &mut self.thread else { return };
        let room = keys.len() * sink.value_bytes();
        if self.values.len() < room {
            self.values.resize(room, 0);
        }
        thread.get_batch(keys, &mut self.values[..room], |position, value| {
            match value.first_chunk() {
                Some(word) if value.len() == 8 => sink.hit_word(position, *word, 8),
                _ => sink.hit_bytes(position, value),
            }
        });
    }

    #[inline]
    fn set(&mut self, key: Key<'_>, value: &[u8]) -> bool {
        self.thread.as_mut().is_some_and(|thread| thread.put(&key, value))
    }

    #[inline]
    fn quiesce(&mut self) {
        if let Some(thread) = &self.thread
            && let Some(quiesce) = thread.map.functions.quiesce
        {
            // SAFETY: our thread, between operations.
            unsafe { quiesce(thread.thread.as_ptr()) }
        }
    }
}

/// Tries a small map of the library out.
fn check(functions: Functions, threads: usize) -> anyhow::Result<()> {
    let configuration =
        Configuration { expected_items: 16, workers: threads, ..Configuration::default() };
    let map = External::create(functions, &configuration)?;
    let barrier = Barrier::new(threads);
    let entered = std::thread::scope(|scope| {
        let enter = || {
            let thread = map.enter();
            // All enter at once: some libraries have room for a fixed number of threads.
            barrier.wait();
            thread.is_some()
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(enter)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).filter(|has| *has).count()
    });
    ensure!(entered == threads, "amalgam_map_enter took {entered} of {threads} threads");
    let mut thread = map.enter().context("amalgam_map_enter took no thread a second time")?;
    operate(&mut thread, &configuration)?;
    let items = Target::statistics(&map).items;
    ensure!(items <= 1, "amalgam_map_items says {items} where there is one item");
    Ok(())
}

/// Stores, reads, replaces and deletes.
fn operate(thread: &mut ExternalThread<'_>, configuration: &Configuration) -> anyhow::Result<()> {
    let names: [&[u8]; 3] = [b"first", b"second key", b"third"];
    let [first, second, third] = names.map(|name| Key::new(name, &configuration.seed));
    let mut room = [0u8; 16];
    let mut read = |thread: &mut ExternalThread<'_>, key: &Key<'_>| {
        thread.get(key, &mut room).map(|length| room[..length].to_vec())
    };
    ensure!(read(thread, &first).is_none(), "amalgam_map_get found a key in an empty map");
    ensure!(thread.put(&first, b"one"), "amalgam_map_put refused an item of an empty map");
    ensure!(thread.put(&second, b""), "amalgam_map_put refused a value of no bytes");
    ensure!(read(thread, &first).as_deref() == Some(b"one"), "amalgam_map_get missed what was put");
    ensure!(thread.put(&first, b"another"), "amalgam_map_put refused to replace an item");
    let replaced = read(thread, &first);
    ensure!(replaced.as_deref() == Some(b"another"), "amalgam_map_put did not replace a value");
    let mut cut = [0u8; 3];
    ensure!(
        thread.get(&first, &mut cut) == Some(3) && &cut == b"ano",
        "amalgam_map_get did not fill a room shorter than the value"
    );
    let mut batch = Vec::new();
    let mut values = [0u8; 3 * 16];
    let asked = [first, third, second];
    thread.get_batch(&asked, &mut values, |position, value| {
        batch.push((position, value.to_vec()));
    });
    ensure!(
        batch == [(0, b"another".to_vec()), (2, Vec::new())],
        "amalgam_map_get_batch answered otherwise than amalgam_map_get"
    );
    ensure!(!thread.delete(&third), "amalgam_map_delete deleted a key that was not there");
    ensure!(thread.delete(&first), "amalgam_map_delete missed a key");
    ensure!(read(thread, &first).is_none(), "amalgam_map_get found what was deleted");
    Ok(())
}
