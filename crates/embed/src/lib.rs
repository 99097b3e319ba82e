//! The map of amalgam-index for programs in C and, by `python/`, in Python. `include/amalgam.h` is
//! the reference: it says what each function does, and what the caller promises.
//!
//! Thread safety: all functions except [`amalgam_close`] may be called by any number of threads.
//!
//! Invariants:
//! 1. No panic leaves a function (`guarded`).
//! 2. No pointer is followed before it was checked for null and alignment, and its length for what
//!    an object may have (`pointers`).
//! 3. Nothing is allocated whose size a caller gives, apart from items within the map's bound.

#![allow(clippy::missing_safety_doc, reason = "`amalgam.h` has it, as it is for callers in C")]

mod code;
mod map;
mod pointers;

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use amalgam_index::{DEFAULT_ENGINE, with_engine};

pub use code::Code;
use map::{AnyMap, Open, Settings};
use pointers::{Buffer, List, key_at, map_at, slot_at, slots_at, text_at};

/// An open map, which C knows by pointer only.
pub struct AmalgamMap(Box<dyn AnyMap>);

/// The keys that are read at once: a batch of the library.
const BATCH: usize = 64;

/// The length of a value that is absent: `AMALGAM_ABSENT`.
const ABSENT: usize = usize::MAX;

/// Runs `work` and returns its code, also if it panics. What a panic leaves behind may be locked,
/// so the header says to give the map up. (If the panic's payload panicked as well when it is
/// dropped, the process would abort: no panic passes an `extern "C" fn`.)
fn guarded(work: impl FnOnce() -> Result<(), Code>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Code::Internal));
    result.map_or_else(|code| code as i32, |()| Code::Ok as i32)
}

/// The version of this library.
#[unsafe(no_mangle)]
pub extern "C" fn amalgam_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// What a code means.
#[unsafe(no_mangle)]
pub extern "C" fn amalgam_error_text(code: i32) -> *const c_char {
    Code::text(code).as_ptr()
}

/// Opens an empty map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_open(
    engine: *const c_char,
    memory_bytes: usize,
    max_item_bytes: usize,
    map: *mut *mut AmalgamMap,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's `map` is valid for a write, and `engine` null or a text.
        let (slot, name) = unsafe { (slot_at(map)?, text_at(engine)) };
        let slot = slot.write(ptr::null_mut());
        let settings = Settings { memory_bytes, max_item_bytes };
        let name = name.unwrap_or(DEFAULT_ENGINE.as_bytes());
        let name = std::str::from_utf8(name).map_err(|_| Code::UnknownEngine)?;
        let map = with_engine(name, Open(settings)).ok_or(Code::UnknownEngine)??;
        *slot = Box::into_raw(Box::new(AmalgamMap(map)));
        Ok(())
    })
}

/// Closes a map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_close(map: *mut AmalgamMap) {
    guarded(|| {
        if !map.is_null() {
            // SAFETY: the pointer is one of `amalgam_open`, and the caller uses it no more.
            drop(unsafe { Box::from_raw(map) });
        }
        Ok(())
    });
}

/// Copies the value of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_get(
    map: *const AmalgamMap,
    key: *const u8,
    key_bytes: usize,
    value: *mut u8,
    capacity: usize,
    value_bytes: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, as the header says.
        let (map, key, buffer, length) = unsafe {
            let buffer = slots_at(value, capacity)?;
            (map_at(map)?, key_at(key, key_bytes)?, buffer, slot_at(value_bytes)?)
        };
        let mut buffer = Buffer::new(buffer);
        let mut is_found = false;
        map.0.get_many(&[key], &mut |_, bytes| {
            is_found = true;
            buffer.append(bytes);
        });
        length.write(buffer.needed());
        if is_found { buffer.check() } else { Err(Code::NotFound) }
    })
}

/// Stores a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_set(
    map: *const AmalgamMap,
    key: *const u8,
    key_bytes: usize,
    value: *const u8,
    value_bytes: usize,
    ttl_seconds: u64,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, as the header says.
        let (map, key, value) = unsafe {
            let value = pointers::bytes_at(value, value_bytes)?;
            (map_at(map)?, key_at(key, key_bytes)?, value)
        };
        map.0.set(key, value, ttl_seconds)
    })
}

/// Removes the item of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_delete(
    map: *const AmalgamMap,
    key: *const u8,
    key_bytes: usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, as the header says.
        let (map, key) = unsafe { (map_at(map)?, key_at(key, key_bytes)?) };
        if map.0.delete(key) { Ok(()) } else { Err(Code::NotFound) }
    })
}

/// Gives the item of a key a new time to live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_expire(
    map: *const AmalgamMap,
    key: *const u8,
    key_bytes: usize,
    ttl_seconds: u64,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, as the header says.
        let (map, key) = unsafe { (map_at(map)?, key_at(key, key_bytes)?) };
        if map.0.expire(key, ttl_seconds) { Ok(()) } else { Err(Code::NotFound) }
    })
}

/// Adds to a decimal number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_increment(
    map: *const AmalgamMap,
    key: *const u8,
    key_bytes: usize,
    delta: u64,
    sum: *mut u64,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, as the header says.
        let (map, key, slot) = unsafe { (map_at(map)?, key_at(key, key_bytes)?, slot_at(sum)?) };
        slot.write(map.0.increment(key, delta)?);
        Ok(())
    })
}

/// Counts the items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_count(map: *const AmalgamMap, count: *mut u64) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid, as the header says.
        let (map, slot) = unsafe { (map_at(map)?, slot_at(count)?) };
        slot.write(map.0.count());
        Ok(())
    })
}

/// Copies the values of many keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_get_many(
    map: *const AmalgamMap,
    keys: *const *const u8,
    key_bytes: *const usize,
    count: usize,
    values: *mut u8,
    capacity: usize,
    offsets: *mut usize,
    value_bytes: *mut usize,
    needed_bytes: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, and those in `keys` for the
        // lengths in `key_bytes`, as the header says.
        let (map, keys, buffer, needed) = unsafe {
            let buffer = slots_at(values, capacity)?;
            (map_at(map)?, List::new(keys, key_bytes, count)?, buffer, slot_at(needed_bytes)?)
        };
        // SAFETY: as above; the header says that the two arrays do not overlap.
        let (offsets, lengths) =
            unsafe { (slots_at(offsets, count)?, slots_at(value_bytes, count)?) };
        let mut buffer = Buffer::new(buffer);
        for start in (0..count).step_by(BATCH) {
            let mut batch: [&[u8]; BATCH] = [&[]; BATCH];
            let batch = &mut batch[..BATCH.min(count - start)];
            for (place, key) in batch.iter_mut().enumerate() {
                *key = keys.key(start + place)?;
            }
            let offsets = &mut offsets[start..start + batch.len()];
            let lengths = &mut lengths[start..start + batch.len()];
            offsets.fill(MaybeUninit::new(0));
            lengths.fill(MaybeUninit::new(ABSENT));
            map.0.get_many(batch, &mut |position, bytes| {
                offsets[position].write(buffer.append(bytes));
                lengths[position].write(bytes.len());
            });
        }
        needed.write(buffer.needed());
        buffer.check()
    })
}

/// Stores many values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amalgam_set_many(
    map: *const AmalgamMap,
    keys: *const *const u8,
    key_bytes: *const usize,
    values: *const *const u8,
    value_bytes: *const usize,
    count: usize,
    ttl_seconds: u64,
    stored: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's pointers are valid for their lengths, and those in `keys` and
        // `values` for the lengths next to them, as the header says.
        let (map, keys, values, stored) = unsafe {
            let keys = List::new(keys, key_bytes, count)?;
            (map_at(map)?, keys, List::new(values, value_bytes, count)?, slot_at(stored)?)
        };
        let stored = stored.write(0);
        for position in 0..count {
            map.0.set(keys.key(position)?, values.bytes(position)?, ttl_seconds)?;
            *stored = position + 1;
        }
        Ok(())
    })
}
