//! Tables of index words: zeroed, on huge pages, charged to the memory limit.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use super::arena::Mapping;
use super::budget::Budget;

/// Types for which zeroed memory is a valid value and that threads may share.
///
/// # Safety
///
/// All-zero bytes are a valid value, and dropping one does nothing.
pub unsafe trait Zeroable: Sync {}

// SAFETY: atomics of integers are valid as zero.
unsafe impl Zeroable for AtomicU8 {}
// SAFETY: as above.
unsafe impl Zeroable for AtomicU16 {}
// SAFETY: as above.
unsafe impl Zeroable for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroable for AtomicU64 {}
// SAFETY: an array of zero elements is all zero bytes.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

/// A slice of `T`, zeroed at first and aligned to a huge page. Its bytes are charged to the memory
/// limit until it is dropped.
pub struct Table<T> {
    mapping: Mapping,
    length: usize,
    budget: Arc<Budget>,
    element: std::marker::PhantomData<T>,
}

// SAFETY: a table owns its memory, as a boxed slice would.
unsafe impl<T: Zeroable + Send> Send for Table<T> {}
// SAFETY: a table hands out shared references only, and `Zeroable` requires `Sync`.
unsafe impl<T: Zeroable> Sync for Table<T> {}

impl<T: Zeroable> Table<T> {
    /// # Errors
    ///
    /// `OutOfMemory` if the limit does not allow the table, or the system's error.
    pub(super) fn new(length: usize, budget: &Arc<Budget>) -> io::Result<Self> {
        let bytes = Self::bytes_for(length);
        if !budget.try_charge(bytes) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        match Mapping::new(bytes) {
            Ok(mapping) => {
                let element = std::marker::PhantomData;
                Ok(Self { mapping, length, budget: budget.clone(), element })
            }
            Err(error) => {
                budget.release(bytes);
                Err(error)
            }
        }
    }

    /// A zeroed table that is charged to no limit, for owners that count their memory themselves.
    ///
    /// # Errors
    ///
    /// The system's error, if it refuses the memory.
    pub fn unlimited(length: usize) -> io::Result<Self> {
        Self::new(length, &Arc::new(Budget::new(usize::MAX)))
    }

    /// The bytes that a table of `length` elements is charged with.
    pub fn bytes_for(length: usize) -> usize {
        length * size_of::<T>()
    }

    /// Bytes charged to the limit.
    pub fn bytes(&self) -> usize {
        Self::bytes_for(self.length)
    }

    /// Faults all pages of the table in, so that later writes do not fault. Slow: not for the
    /// request path.
    pub fn populate(&self) {
        self.mapping.populate();
    }

    /// Asks the memory system for the line of element `index`.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        debug_assert!(index < self.length, "prefetch beyond the table");
        super::item::prefetch(self.mapping.base().as_ptr().wrapping_add(index * size_of::<T>()));
    }
}

impl<T: Zeroable> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has this many zero-initialised elements, aligned to a huge page.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr().cast(), self.length) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        self.budget.release(self.length * size_of::<T>());
    }
}
