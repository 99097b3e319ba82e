//! Pointers of C as references, after what can be checked was checked.
//!
//! Invariant: each function here refuses null, misaligned pointers and lengths above what an object
//! may have. Requires what cannot be checked, and `amalgam.h` demands: pointers are valid for their
//! lengths until the call ends, nobody writes meanwhile to what is read, and what is written
//! overlaps nothing else.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::slice;

use amalgam_index::op::MAX_KEY_BYTES;

use crate::{AmalgamMap, Code};

/// Refuses what cannot be an array of `count` elements. An empty one may be null.
fn check<T>(pointer: *const T, count: usize) -> Result<(), Code> {
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Code::BadLength);
    }
    if count > 0 && (pointer.is_null() || !pointer.is_aligned()) {
        return Err(Code::BadPointer);
    }
    Ok(())
}

/// The elements at a pointer.
unsafe fn array_at<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T], Code> {
    check(pointer, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the pointer is neither null nor misaligned, the length is one that an object may
    // have, and the caller promises the rest.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// The bytes at a pointer.
pub(crate) unsafe fn bytes_at<'a>(pointer: *const u8, count: usize) -> Result<&'a [u8], Code> {
    // SAFETY: the caller promises what the callee asks for.
    unsafe { array_at(pointer, count) }
}

/// The key at a pointer.
pub(crate) unsafe fn key_at<'a>(pointer: *const u8, count: usize) -> Result<&'a [u8], Code> {
    if !(1..=MAX_KEY_BYTES).contains(&count) {
        return Err(Code::KeyLength);
    }
    // SAFETY: the caller promises what the callee asks for.
    unsafe { array_at(pointer, count) }
}

/// Elements to write, whatever is there.
pub(crate) unsafe fn slots_at<'a, T>(
    pointer: *mut T,
    count: usize,
) -> Result<&'a mut [MaybeUninit<T>], Code> {
    check(pointer, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as in `array_at`; the elements need not be initialized, and nothing overlaps them.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), count) })
}

/// One element to write.
pub(crate) unsafe fn slot_at<'a, T>(pointer: *mut T) -> Result<&'a mut MaybeUninit<T>, Code> {
    // SAFETY: the caller promises what the callee asks for.
    unsafe { slots_at(pointer, 1) }.map(|slots| &mut slots[0])
}

/// The map at a pointer.
///
/// # Safety
///
/// The pointer is null or one of `amalgam_open` that is not closed before the call ends.
pub(crate) unsafe fn map_at<'a>(pointer: *const AmalgamMap) -> Result<&'a AmalgamMap, Code> {
    check(pointer, 1)?;
    // SAFETY: the pointer is not null, and the caller promises the rest.
    Ok(unsafe { &*pointer })
}

/// The text at a pointer, without its end; None if the pointer is null.
///
/// # Safety
///
/// The pointer is null, or what it points to ends with a zero and is not written meanwhile.
pub(crate) unsafe fn text_at<'a>(pointer: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the pointer is not null, and the caller promises the rest.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// Byte strings whose pointers and lengths stand in two arrays.
pub(crate) struct List<'a> {
    pointers: &'a [*const u8],
    lengths: &'a [usize],
}

impl<'a> List<'a> {
    /// Requires what the module's head says of the arrays, and of each pointer in `pointers` with
    /// the length in `lengths`.
    pub(crate) unsafe fn new(
        pointers: *const *const u8,
        lengths: *const usize,
        count: usize,
    ) -> Result<Self, Code> {
        // SAFETY: the caller promises what the callee asks for.
        let (pointers, lengths) =
            unsafe { (array_at(pointers, count)?, array_at(lengths, count)?) };
        Ok(Self { pointers, lengths })
    }

    /// The byte string at a position.
    pub(crate) fn bytes(&self, position: usize) -> Result<&'a [u8], Code> {
        // SAFETY: the caller of `new` promised it.
        unsafe { bytes_at(self.pointers[position], self.lengths[position]) }
    }

    /// The key at a position.
    pub(crate) fn key(&self, position: usize) -> Result<&'a [u8], Code> {
        // SAFETY: the caller of `new` promised it.
        unsafe { key_at(self.pointers[position], self.lengths[position]) }
    }
}

/// A buffer of the caller that values are copied to, one after the other, as far as they fit.
pub(crate) struct Buffer<'a> {
    room: &'a mut [MaybeUninit<u8>],
    /// The bytes of all values, those that did not fit too.
    needed: usize,
}

impl<'a> Buffer<'a> {
    pub(crate) fn new(room: &'a mut [MaybeUninit<u8>]) -> Self {
        Self { room, needed: 0 }
    }

    /// Appends a value if it fits, and all before it did; returns the offset.
    pub(crate) fn append(&mut self, value: &[u8]) -> usize {
        let offset = self.needed;
        // Many long values under one key may come to more than a number can have.
        self.needed = offset.saturating_add(value.len());
        if let Some(room) = self.room.get_mut(offset..self.needed)
            && room.len() == value.len()
        {
            // SAFETY: initialized bytes are valid as bytes that need not be.
            room.copy_from_slice(unsafe {
                slice::from_raw_parts(value.as_ptr().cast(), value.len())
            });
        }
        offset
    }

    /// The bytes of all values.
    pub(crate) fn needed(&self) -> usize {
        self.needed
    }

    /// Whether all values fitted.
    pub(crate) fn check(&self) -> Result<(), Code> {
        if self.needed <= self.room.len() { Ok(()) } else { Err(Code::BufferTooShort) }
    }
}
