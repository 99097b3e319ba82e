//! Tests of who keeps a map open, small enough for Miri.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;

use super::{Engine, Handle, Map, MapBuilder, OwnedHandle};
use crate::{HotRingR, HotRingS, Memc3, Mercury, Pipeline};

fn small(handles: usize) -> MapBuilder {
    let builder = MapBuilder::new().memory_bytes(1 << 19).max_item_bytes(1 << 12);
    builder.expected_items(100).handles(handles)
}

/// A handle works and ends in another thread, after the map is gone.
fn outlives<E: Engine>() {
    let map: Map<E> = small(2).open().expect("opens");
    let mut handle = map.owned_handle();
    assert_eq!(handle.insert(b"key", b"one"), Ok(()));
    let ready = Arc::new(Barrier::new(2));
    let dropped = Arc::clone(&ready);
    let thread = thread::spawn(move || {
        dropped.wait();
        assert_eq!(handle.get(b"key").as_deref(), Some(&b"two"[..]));
        assert!(handle.remove(b"key"));
        assert!(!handle.contains(b"key"));
        drop(handle);
    });
    assert_eq!(map.with(|handle| handle.insert(b"key", b"two")), Ok(()));
    drop(map);
    ready.wait();
    thread.join().expect("it ends");
}

#[test]
fn handles_outlive_their_map() {
    outlives::<Mercury>();
    // Miri takes minutes for the others, whose workers are moved by the same code.
    if cfg!(miri) {
        return;
    }
    outlives::<Memc3>();
    outlives::<HotRingR>();
    outlives::<HotRingS>();
    outlives::<Pipeline>();
}

/// A handle goes from thread to thread, while others use the map: what it pins and unpins in one it
/// goes on with in the next.
#[test]
fn a_handle_moves_between_threads() {
    let map: Arc<Map> = Arc::new(small(3).open().expect("opens"));
    let mut handle: OwnedHandle = map.owned_handle();
    for round in 0_u32..if cfg!(miri) { 4 } else { 50 } {
        let other = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                for number in 0_u32..20 {
                    let stored = map.with(|h| h.insert(&number.to_le_bytes(), b"other"));
                    assert_eq!(stored, Ok(()));
                }
            })
        };
        let mover = thread::spawn(move || {
            for number in 0_u32..20 {
                assert_eq!(handle.insert(&number.to_le_bytes(), &round.to_le_bytes()), Ok(()));
                let value = handle.get(&number.to_le_bytes()).expect("nobody removes it");
                assert!(value == b"other" || value == round.to_le_bytes(), "{value:?}");
            }
            handle
        });
        handle = mover.join().expect("it ends");
        other.join().expect("it ends");
    }
}

#[test]
fn more_threads_than_handles_share_the_pool() {
    const ROUNDS: u64 = if cfg!(miri) { 3 } else { 500 };
    let map: Arc<Map<Memc3>> = Arc::new(small(2).open().expect("opens"));
    let threads: Vec<_> = (0..5)
        .map(|_| {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                for _ in 0..ROUNDS {
                    map.with(|handle| handle.increment(b"sum", 1)).expect("a number");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("it ends");
    }
    // Both handles may lie in the pool by now: one of them is taken out.
    let sum = map.handle().get(b"sum");
    assert_eq!(sum, Some((5 * ROUNDS).to_string().into_bytes()));
}

/// As many handles as were asked for can be taken at once, one more is refused to the thread that
/// asks, and the background thread lives, however early they are taken.
#[test]
fn the_background_thread_has_a_worker_of_its_own() {
    for _ in 0..if cfg!(miri) { 2 } else { 100 } {
        let map: Map = small(1).open().expect("opens");
        let handle: Handle<'_, _> = map.handle();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(map.handle()))).is_err());
        assert!(map.owner.is_maintained());
        drop(handle);
        drop(map.handle());
    }
    assert!(small(0).open::<Mercury>().is_err());
    assert!(small(usize::MAX).open::<Mercury>().is_err());
}

/// A closure that panics harms neither the handle nor the item that it was shown.
#[test]
fn a_panic_leaves_the_pool_and_the_map_in_order() {
    fn survives<E: Engine>() {
        let map: Map<E> = small(1).open().expect("opens");
        assert_eq!(map.with(|handle| handle.insert(b"key", b"one")), Ok(()));
        let panics = || map.with(|handle| handle.get_with(b"key", |_| panic!("as expected")));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        let panics = || map.with(|handle| handle.update(b"key", |_| panic!("as expected")));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(map.with(|handle| handle.insert(b"key", b"two")), Ok(()));
        assert_eq!(map.with(|handle| handle.get(b"key")).as_deref(), Some(&b"two"[..]));
    }
    survives::<Mercury>();
    survives::<Memc3>();
    survives::<HotRingR>();
    survives::<HotRingS>();
    survives::<Pipeline>();
}

/// Two maps keep to themselves even if somebody exchanges their handles.
#[test]
fn exchanged_handles_do_not_stay_in_the_wrong_pool() {
    let [map, other] = [1, 2].map(|_| small(2).open::<Mercury>().expect("opens"));
    let mut stranger = other.owned_handle();
    map.with(|handle| std::mem::swap(handle, &mut stranger));
    assert_eq!(stranger.insert(b"key", b"value"), Ok(()));
    assert_eq!(map.with(|handle| handle.get(b"key")).as_deref(), Some(&b"value"[..]));
    assert!(!other.with(|handle| handle.contains(b"key")));
}
