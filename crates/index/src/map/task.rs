//! Operations of a [`Map`] that tasks wait for, without a runtime: futures that wake each other.
//!
//! Thread safety: as [`Map::with`], which each step calls. No handle is held while a task waits.

use std::future::Future;

use super::Map;
use super::handle::{InsertError, is_valid};
use crate::Engine;

impl<E: Engine> Map<E> {
    /// The value of `key`, or else that of the future `make`, which is stored. Of the tasks and
    /// threads that ask for an absent key at the same time, through this function or through
    /// [`get_or_insert_with`](crate::Handle::get_or_insert_with), one runs its `make`, and the
    /// others wait for the value. If a task is dropped while it makes, or the value is gone before
    /// they see it, one of them runs its own. Works on any runtime.
    ///
    /// `make` must not ask for the same key in turn: it would wait for itself. Nor should a thread
    /// that runs tasks call the blocking function for a key that one of its own tasks makes.
    ///
    /// ```
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    /// use amalgam_index::{Map, MapBuilder};
    ///
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    /// #         if let Poll::Ready(output) = poll { return output; }
    /// #     }
    /// # }
    /// let map: Map = MapBuilder::new().open()?;
    /// block_on(async {
    ///     let page = map.get_or_insert_async(b"page", async { b"made".to_vec() }).await;
    ///     assert_eq!(page, Ok(b"made".to_vec()));
    /// });
    /// # Ok::<(), amalgam_index::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If [`insert`](crate::Handle::insert) would fail. `make` is not run for a key of invalid
    /// length.
    pub async fn get_or_insert_async(
        &self,
        key: &[u8],
        make: impl Future<Output = Vec<u8>>,
    ) -> Result<Vec<u8>, InsertError> {
        self.try_get_or_insert_async(key, async { Ok(make.await) }).await
    }

    /// As [`get_or_insert_async`](Self::get_or_insert_async), for a value whose making may fail.
    /// Then nothing is stored, the caller gets the error, and one of those who wait runs its own
    /// `make`.
    ///
    /// ```
    /// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    /// #         if let Poll::Ready(output) = poll { return output; }
    /// #     }
    /// # }
    /// # let map: amalgam_index::Map = amalgam_index::MapBuilder::new().open()?;
    /// use std::io::{Error, ErrorKind};
    ///
    /// let failed = async { Err(Error::from(ErrorKind::TimedOut)) };
    /// let made = block_on(map.try_get_or_insert_async(b"page", failed));
    /// assert_eq!(made.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
    /// let made = async { Ok::<_, Error>(vec![1]) };
    /// let made = block_on(map.try_get_or_insert_async(b"page", made));
    /// assert_eq!(made?, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// That of `make`, or, turned into its type, that of [`insert`](crate::Handle::insert).
    pub async fn try_get_or_insert_async<X: From<InsertError>>(
        &self,
        key: &[u8],
        make: impl Future<Output = Result<Vec<u8>, X>>,
    ) -> Result<Vec<u8>, X> {
        if let Some(value) = self.with(|handle| handle.get(key)) {
            return Ok(value);
        }
        if !is_valid(key) {
            return Err(InsertError::KeyLength.into());
        }
        let _claim = self.owner.shared.in_flight.claim_in_task(key).await;
        if let Some(value) = self.with(|handle| handle.get(key)) {
            return Ok(value);
        }
        let value = make.await?;
        Ok(self.with(|handle| handle.keep(key, value))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapBuilder;
    use std::future::{poll_fn, ready};
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread;

    type Made = Result<Vec<u8>, InsertError>;

    fn map() -> Map {
        MapBuilder::new().memory_bytes(8 << 20).max_item_bytes(1 << 16).open().expect("opens")
    }

    /// Wakes a thread, and counts how often.
    struct Unpark(thread::Thread, AtomicU32);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.unpark();
        }
    }

    fn unpark() -> Arc<Unpark> {
        Arc::new(Unpark(thread::current(), AtomicU32::new(0)))
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let waker = Waker::from(unpark());
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Ready with `value` when it is polled for the second time.
    fn later(value: &'static [u8]) -> impl Future<Output = Vec<u8>> {
        let mut polls = 0;
        poll_fn(move |context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 2 { Poll::Pending } else { Poll::Ready(value.to_vec()) }
        })
    }

    fn poll(task: Pin<&mut impl Future<Output = Made>>, waker: &Arc<Unpark>) -> Poll<Made> {
        task.poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
    }

    #[test]
    fn a_task_waits_for_the_one_that_makes() {
        let map = map();
        let [first, second] = [unpark(), unpark()];
        let mut maker = pin!(map.get_or_insert_async(b"key", later(b"first")));
        let mut other = pin!(map.get_or_insert_async(b"key", ready(b"second".to_vec())));
        assert!(poll(maker.as_mut(), &first).is_pending());
        assert!(poll(other.as_mut(), &second).is_pending());
        assert!(poll(other.as_mut(), &second).is_pending());
        assert_eq!(second.1.load(Ordering::SeqCst), 0);
        assert_eq!(poll(maker.as_mut(), &first), Poll::Ready(Ok(b"first".to_vec())));
        // Polled twice, it waits once.
        assert_eq!(second.1.load(Ordering::SeqCst), 1);
        assert_eq!(poll(other.as_mut(), &second), Poll::Ready(Ok(b"first".to_vec())));
        let refused = map.get_or_insert_async(b"", poll_fn(|_| unreachable!("not run")));
        assert_eq!(block_on(refused), Err(InsertError::KeyLength));
    }

    #[test]
    fn a_cancelled_maker_is_followed_by_one_that_waits() {
        let map = map();
        let [first, second] = [unpark(), unpark()];
        let mut maker = Box::pin(map.get_or_insert_async(b"key", later(b"first")));
        let mut other = pin!(map.get_or_insert_async(b"key", ready(b"second".to_vec())));
        assert!(poll(maker.as_mut(), &first).is_pending());
        assert!(poll(other.as_mut(), &second).is_pending());
        drop(maker);
        assert_eq!(second.1.load(Ordering::SeqCst), 1);
        assert_eq!(poll(other.as_mut(), &second), Poll::Ready(Ok(b"second".to_vec())));
    }

    #[test]
    fn a_maker_that_fails_is_followed_by_one_that_does_not() {
        let map = map();
        let error = InsertError::OutOfMemory;
        let failed = block_on(map.try_get_or_insert_async(b"key", ready(Err(error))));
        assert_eq!(failed, Err(error));
        let made = block_on(map.get_or_insert_async(b"key", ready(b"made".to_vec())));
        assert_eq!(made, Ok(b"made".to_vec()));
    }

    /// Tasks of several threads, which are `Send`, and blocking calls, for the same keys.
    #[test]
    fn tasks_and_threads_wait_for_each_other() {
        let (map, made) = (Arc::new(map()), Arc::new(AtomicU32::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (map, made) = (Arc::clone(&map), Arc::clone(&made));
                let make = move |made: &AtomicU32| {
                    thread::yield_now();
                    made.fetch_add(1, Ordering::Relaxed).to_le_bytes().to_vec()
                };
                thread::spawn(move || {
                    (0_u32..200)
                        .map(|round| {
                            let key = round.to_le_bytes();
                            let value = match number % 2 {
                                0 => block_on(map.get_or_insert_async(&key, async { make(&made) })),
                                _ => map.with(|h| h.get_or_insert_with(&key, || make(&made))),
                            };
                            value.expect("there is memory")
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("ends")).collect();
        assert!(seen.iter().all(|values| *values == seen[0]));
        assert_eq!(made.load(Ordering::Relaxed), 200);
    }
}
