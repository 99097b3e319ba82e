//! Operations of a [`Handle`](super::Handle) that read an item and decide by it what becomes of it,
//! and those on all items.
//!
//! Thread safety: a change that a closure decides takes effect only if no other thread changed the
//! item since the closure saw it; otherwise the closure is called again, or the item stays.

use std::fmt::{Display, Formatter, Result as FormatResult};
use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_op::{Arithmetic, Compare, Delete, Get, Outcome, Store, StoreMode, Verb};

use super::handle::{Handle, InsertError, is_valid};
use super::removal::RemovalCause;
use crate::{Cursor, Engine, Worker};

/// Buckets, about, that are visited before memory that other threads free may be reused.
const SCAN_BUDGET: usize = 256;

/// The reason why a number was not increased.
///
/// ```
/// use amalgam_index::IncrementError;
///
/// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
/// let mut handle = map.handle();
/// handle.insert(b"name", b"Ada")?;
/// assert_eq!(handle.increment(b"name", 1), Err(IncrementError::NotANumber));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IncrementError {
    /// The value is not a decimal number below 2^64.
    NotANumber,
    /// The item could not be stored.
    Insert(InsertError),
}

impl Display for IncrementError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        match self {
            Self::NotANumber => formatter.write_str("the value is not a decimal number"),
            Self::Insert(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for IncrementError {}

/// What an addition came to; None if the key has an invalid length.
fn incremented(outcome: Option<Outcome>) -> Result<u64, IncrementError> {
    match outcome {
        Some(Outcome::Number(counted)) => Ok(counted.number),
        Some(Outcome::OutOfMemory) => Err(IncrementError::Insert(InsertError::OutOfMemory)),
        Some(Outcome::TooLarge) => Err(IncrementError::Insert(InsertError::TooLarge)),
        Some(_) => Err(IncrementError::NotANumber),
        None => Err(IncrementError::Insert(InsertError::KeyLength)),
    }
}

impl<E: Engine> Handle<'_, E> {
    /// Adds `delta` to the decimal number that is the value of `key`, and returns the sum, which
    /// wraps at 2^64. An absent key gets the value `delta`. The item keeps its time to live.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// assert_eq!(handle.increment(b"visits", 1), Ok(1));
    /// assert_eq!(handle.increment(b"visits", 41), Ok(42));
    /// assert_eq!(handle.get(b"visits").as_deref(), Some(&b"42"[..]));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the value is no number, or [`insert`](Self::insert) would fail.
    pub fn increment(&mut self, key: &[u8], delta: u64) -> Result<u64, IncrementError> {
        if self.has_listener() {
            return self.increment_noticed(key, delta);
        }
        let arithmetic = Arithmetic { delta, initial: Some(delta), ..Arithmetic::default() };
        incremented(self.apply(key, Verb::Arithmetic(arithmetic)))
    }

    /// As [`Self::increment`], and tells the listener.
    fn increment_noticed(&mut self, key: &[u8], delta: u64) -> Result<u64, IncrementError> {
        loop {
            let Some((old, cas)) = self.get_with_cas(key, <[u8]>::to_vec) else {
                match self.insert_if_absent(key, delta.to_string().as_bytes()) {
                    Ok(true) => return Ok(delta),
                    // Another thread was faster, here and below: so some thread made progress.
                    Ok(false) => continue,
                    Err(error) => return Err(IncrementError::Insert(error)),
                }
            };
            let arithmetic = Arithmetic { delta, compare: Some(cas), ..Arithmetic::default() };
            let outcome = self.apply(key, Verb::Arithmetic(arithmetic));
            if matches!(outcome, Some(Outcome::Exists | Outcome::NotFound)) {
                continue;
            }
            let sum = incremented(outcome)?;
            self.shared().listener.call(key, &old, RemovalCause::Replaced);
            return Ok(sum);
        }
    }

    /// Replaces the value of `key` by what `change` makes of it, as one linearizable operation.
    /// `change` gets None if the key is absent, and returns None to leave the key as it is; the
    /// result says whether a value was stored. A stored item does not expire. If another thread
    /// changes the item meanwhile, `change` is called again with the newer value.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// let longer = |old: Option<&[u8]>| Some([old.unwrap_or(b""), b"x"].concat());
    /// assert_eq!(handle.update(b"key", longer), Ok(true));
    /// assert_eq!(handle.update(b"key", longer), Ok(true));
    /// assert_eq!(handle.get(b"key").as_deref(), Some(&b"xx"[..]));
    /// assert_eq!(handle.update(b"key", |_| None), Ok(false));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`insert`](Self::insert) would fail.
    pub fn update(
        &mut self,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<bool, InsertError> {
        self.change(key, 0, &mut change)
    }

    /// As [`Self::update`], with an expiry as engines read it, and tells the listener.
    pub(super) fn change(
        &mut self,
        key: &[u8],
        expiry: i64,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<bool, InsertError> {
        let keeps = self.has_listener();
        loop {
            let read = |value: &[u8]| (change(Some(value)), keeps.then(|| value.to_vec()));
            let seen = self.get_with_cas(key, read);
            let (value, old, mode, compare) = match seen {
                Some(((value, old), cas)) => {
                    let compare = Compare { cas, accepts_older_as_stale: false };
                    (value, old, StoreMode::Set, Some(compare))
                }
                None => (change(None), None, StoreMode::Add, None),
            };
            let Some(value) = value else { return Ok(false) };
            let store = Store { compare, ..Store::new(mode, &value, 0, expiry) };
            let outcome = self.apply(key, Verb::Store(store));
            let (result, cause) = match outcome {
                None => return Err(InsertError::KeyLength),
                Some(Outcome::Stored(_)) => (Ok(true), RemovalCause::Replaced),
                // The older value may be gone.
                Some(Outcome::TooLarge) => (Err(InsertError::TooLarge), RemovalCause::Removed),
                Some(Outcome::OutOfMemory) => {
                    (Err(InsertError::OutOfMemory), RemovalCause::Removed)
                }
                // Another thread was faster: so some thread made progress.
                Some(_) => continue,
            };
            if let Some(old) = old
                && (result.is_ok() || !self.contains(key))
            {
                self.shared().listener.call(key, &old, cause);
            }
            return result;
        }
    }

    /// The value of `key`, or else that of `make`, which is stored. Of the threads that ask for an
    /// absent key at the same time through this function, one calls `make`, and the others wait
    /// for its value. If `make` panics, or the value is gone before they see it, one of them calls
    /// its own. Other functions do not wait.
    ///
    /// `make` must not ask for the same key through this function: it would wait for itself.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// assert_eq!(handle.get_or_insert_with(b"key", || b"made".to_vec()), Ok(b"made".to_vec()));
    /// assert_eq!(handle.get_or_insert_with(b"key", || b"again".to_vec()), Ok(b"made".to_vec()));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`insert`](Self::insert) would fail. `make` is not called for a key of invalid length.
    pub fn get_or_insert_with(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> Vec<u8>,
    ) -> Result<Vec<u8>, InsertError> {
        self.try_get_or_insert_with(key, || Ok(make()))
    }

    /// As [`get_or_insert_with`](Self::get_or_insert_with), for a value whose making may fail.
    /// Then nothing is stored, the caller gets the error, and one of those who wait calls its own
    /// `make`.
    ///
    /// ```
    /// use amalgam_index::InsertError;
    ///
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// let fails = || Err(std::io::Error::other("no answer"));
    /// assert!(handle.try_get_or_insert_with(b"key", fails).is_err());
    /// let made = handle.try_get_or_insert_with(b"key", || Ok::<_, InsertError>(b"made".to_vec()));
    /// assert_eq!(made, Ok(b"made".to_vec()));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of `make`, or, turned into its type, that of [`insert`](Self::insert).
    pub fn try_get_or_insert_with<X: From<InsertError>>(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> Result<Vec<u8>, X>,
    ) -> Result<Vec<u8>, X> {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        if !is_valid(key) {
            return Err(InsertError::KeyLength.into());
        }
        let shared = Arc::clone(self.shared());
        let _claim = shared.in_flight.claim(key);
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let value = make()?;
        Ok(self.keep(key, value)?)
    }

    /// Stores a value that was made because `key` was absent; returns the value that `key` has.
    pub(super) fn keep(&mut self, key: &[u8], value: Vec<u8>) -> Result<Vec<u8>, InsertError> {
        match self.insert_if_absent(key, &value)? {
            true => Ok(value),
            // Another function stored a value meanwhile. If that is gone already, ours is as good.
            false => Ok(self.get(key).unwrap_or(value)),
        }
    }

    /// Calls `visit` with the key and the value of each item. It is no snapshot: an item that is
    /// there from the beginning to the end is visited at least once, and, if the table grows
    /// meanwhile or the item is replaced, perhaps more than once. `visit` should be short, because
    /// memory that other threads free is not reused meanwhile.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"key", b"value").expect("it fits");
    /// let mut seen = Vec::new();
    /// handle.for_each(|key, value| seen.push((key.to_vec(), value.to_vec())));
    /// assert_eq!(seen, [(b"key".to_vec(), b"value".to_vec())]);
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    pub fn for_each(&mut self, mut visit: impl FnMut(&[u8], &[u8])) {
        let now = self.shared().now();
        let mut next = Some(Cursor::START);
        while let Some(from) = next {
            next = self.worker.scan(from, SCAN_BUDGET, &mut |item| {
                if now.is_live(item.expiry, item.generation) {
                    visit(item.key, item.value.as_bytes());
                }
                ControlFlow::Continue(())
            });
            self.worker.quiesce();
        }
    }

    /// Removes the items for which `keep` is false, and returns how many. An item is removed only
    /// if it has the value that `keep` saw; of items that are inserted meanwhile some may not be
    /// asked for. `keep` may be called more than once for an item.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"one", b"1").expect("it fits");
    /// handle.insert(b"two", b"2").expect("it fits");
    /// assert_eq!(handle.retain(|_, value| value == b"2"), 1);
    /// assert!(handle.contains(b"two") && !handle.contains(b"one"));
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    pub fn retain(&mut self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> u64 {
        let now = self.shared().now();
        let mut removed = 0;
        let mut next = Some(Cursor::START);
        while let Some(from) = next {
            let mut unwanted = Vec::new();
            next = self.worker.scan(from, SCAN_BUDGET, &mut |item| {
                if now.is_live(item.expiry, item.generation)
                    && !keep(item.key, item.value.as_bytes())
                {
                    unwanted.push(item.key.to_vec());
                }
                ControlFlow::Continue(())
            });
            self.worker.quiesce();
            for key in unwanted {
                removed += u64::from(self.remove_unless(&key, &mut keep) == Some(true));
            }
        }
        removed
    }

    /// Removes all items, and returns how many. Items that are inserted meanwhile may stay.
    ///
    /// ```
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// let mut handle = map.handle();
    /// handle.insert(b"one", b"1")?;
    /// handle.insert(b"two", b"2")?;
    /// assert_eq!(handle.clear(), 2);
    /// assert!(map.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(&mut self) -> u64 {
        self.retain(|_, _| false)
    }

    /// Removes the item of `key` and tells the listener. Returns whether there was one.
    pub(super) fn remove_noticed(&mut self, key: &[u8]) -> bool {
        loop {
            match self.remove_unless(key, &mut |_, _| false) {
                Some(true) => return true,
                // Another thread changed the item: so some thread made progress.
                Some(false) => {}
                None => return false,
            }
        }
    }

    /// Removes the item of `key` if `keep` is false for it. Returns whether it did, false also if
    /// another thread changed the item meanwhile; None if it was to be kept or was not there.
    fn remove_unless(
        &mut self,
        key: &[u8],
        keep: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Option<bool> {
        let keeps = self.has_listener();
        // The value may be another than a scan saw, so it is looked at under an id.
        let read = |value: &[u8]| (keep(key, value), keeps.then(|| value.to_vec()));
        let ((is_kept, old), cas) = self.get_with_cas(key, read)?;
        if is_kept {
            return None;
        }
        let delete = Delete { compare: Some(cas), ..Delete::default() };
        let is_removed = self.apply(key, Verb::Delete(delete)) == Some(Outcome::Deleted);
        if let Some(old) = old.filter(|_| is_removed) {
            self.shared().listener.call(key, &old, RemovalCause::Removed);
        }
        Some(is_removed)
    }

    /// What `read` makes of the value of `key`, and the item's id, which changes with each change
    /// of the item; None on a miss.
    fn get_with_cas<R>(&mut self, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<(R, u64)> {
        let (mut read, mut seen) = (Some(read), None);
        let get = Get { wants_cas: true, is_quiet_access: true, ..Get::default() };
        self.apply_with(key, Verb::Get(get), |item| {
            if let Some(read) = read.take() {
                seen = Some((read(item.value.as_bytes()), item.cas.unwrap_or(0)));
            }
        });
        seen
    }
}
