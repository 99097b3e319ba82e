//! What a program is told of items that left a map.
//!
//! Thread safety: [`Listener`] is shared; whichever thread comes first reports what any has left.

use std::fmt::{Debug, Formatter, Result as FormatResult};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::Engine;

/// Why an item left its map.
///
/// ```
/// use amalgam_index::{Map, MapBuilder, RemovalCause};
///
/// let builder = MapBuilder::new().on_removal(|key, value, cause| match cause {
///     RemovalCause::Evicted => eprintln!("{key:?}: {} bytes made way", value.len()),
///     _ => {}
/// });
/// let map: Map = builder.open()?;
/// # Ok::<(), amalgam_index::OpenError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemovalCause {
    /// It was evicted to make room.
    Evicted,
    /// Its time to live was over, and its memory was reclaimed: usually within a tenth of a second.
    Expired,
    /// A handle stored another value under its key.
    Replaced,
    /// A handle removed it.
    Removed,
}

type Call = dyn Fn(&[u8], &[u8], RemovalCause) + Send + Sync;

/// The listener of a map, if it has one.
#[derive(Clone, Default)]
pub(super) struct Listener(Option<Arc<Call>>);

impl Debug for Listener {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> FormatResult {
        formatter.write_str(if self.is_there() { "Listener" } else { "no listener" })
    }
}

impl Listener {
    pub(super) fn new(call: impl Fn(&[u8], &[u8], RemovalCause) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(call)))
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Lets `index` keep what leaves by itself, for [`Self::report`].
    pub(super) fn listen_to(&self, index: &impl Engine) {
        if let Some(evictions) = index.evictions().filter(|_| self.is_there()) {
            evictions.keep_values();
        }
    }

    /// Calls the listener for an item. Requires: the caller holds neither lock nor guard.
    pub(super) fn call(&self, key: &[u8], value: &[u8], cause: RemovalCause) {
        let Some(call) = &self.0 else { return };
        // Its message has been printed. The operation that removed the item is done, and the
        // background thread must live on.
        let _ = catch_unwind(AssertUnwindSafe(|| call(key, value, cause)));
    }

    /// Calls the listener for all items that were evicted or found expired. Requires: the caller
    /// holds neither lock nor guard.
    #[inline]
    pub(super) fn report(&self, index: &impl Engine) {
        if self.is_there() {
            self.report_departed(index);
        }
    }

    fn report_departed(&self, index: &impl Engine) {
        for item in index.evictions().map(|kept| kept.take_departed()).into_iter().flatten() {
            let cause =
                if item.has_expired { RemovalCause::Expired } else { RemovalCause::Evicted };
            self.call(&item.key, &item.value, cause);
        }
    }
}
