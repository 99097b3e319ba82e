//! Room for items that are too large for a slot.

use super::*;

#[cfg(all(target_os = "linux", not(miri)))] // where the system counts waits
#[test]
fn what_others_took_is_evicted_again_at_once() {
    const LENGTH: usize = 150 << 10;
    let toy = Toy::new(2 << 20, 200 << 10, true, 64);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    assert!((0..32).all(|number| toy.set(&mut pool, &helper, number, LENGTH)));
    assert!(toy.memory.budget.try_charge(toy.memory.unused_for_large()));
    // Two items leave for this one, and more is free than it needs.
    assert!(toy.set(&mut pool, &helper, 33, LENGTH + (30 << 10)));
    let value = value(40, LENGTH + (30 << 10));
    let layout = ItemLayout::new(key(40).len(), &item_write(&value), 0, &NOW);
    let layout = layout.expect("it fits a header");
    let (mut evicted, mut slot) = (0, None);
    let before = voluntary_switches();
    while slot.is_none() {
        match pool.reserve(layout) {
            Ok(reserved) => slot = Some(reserved),
            Err(shortage) => assert!(pool.make_room(shortage, None, &NOW, &mut |_, old, new| {
                evicted += 1;
                if evicted == 1 {
                    // Another worker's item takes what was free, which the eviction counts on.
                    let kept = toy.memory.kept_for_large.load(Ordering::Relaxed);
                    assert!(kept > 0 && toy.memory.try_charge_large(kept));
                }
                toy.swap(old, new, &helper)
            })),
        }
    }
    let waits = voluntary_switches() - before;
    assert!(evicted >= 2 && waits < 50, "{evicted} evictions, {waits} waits");
    slot.into_iter().for_each(|slot| pool.give_back(slot));
}

/// A large item that finds no run of address space, or no charge, is refused. `make_room` may not
/// promise what `reserve` does not find: the request would try again for ever.
#[test]
fn a_large_item_without_room_is_refused() {
    const LENGTH: usize = 150 << 10;
    let reserve = |toy: &Toy, pool: &mut Pool<'_>, helper: &Pool<'_>| {
        let value = value(9, LENGTH);
        let layout = ItemLayout::new(key(9).len(), &item_write(&value), 0, &NOW).expect("a layout");
        for _ in 0..8 {
            let shortage = match pool.reserve(layout) {
                Ok(slot) => return Some(Ok(slot)),
                Err(shortage) => shortage,
            };
            if !pool.make_room(shortage, None, &NOW, &mut |_, old, new| toy.swap(old, new, helper))
            {
                return Some(Err(shortage));
            }
        }
        None
    };
    // The budget has room, and the address space has none.
    for evicts in [false, true] {
        let toy = Toy::new(2 << 20, 200 << 10, evicts, 64);
        let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
        while toy.memory.large.take(LENGTH / 2, |_| ()).is_some() {}
        let refused = reserve(&toy, &mut pool, &helper);
        assert!(matches!(refused, Some(Err(_))), "tried again in vain, evicts: {evicts}");
    }
    // What is kept for large items is charged, and the limit is lowered below what is charged.
    let toy = Toy::new(2 << 20, 200 << 10, false, 64);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    assert!(toy.memory.budget.try_charge(400 << 10));
    toy.memory.kept_for_large.fetch_add(400 << 10, Ordering::Relaxed);
    toy.memory.set_limit(100 << 10);
    match reserve(&toy, &mut pool, &helper) {
        Some(Ok(slot)) => pool.give_back(slot),
        Some(Err(_)) => panic!("what is kept for large items is there for them"),
        None => panic!("tried again in vain"),
    }
    // Maintenance gives back what is kept beyond the limit, without eviction too.
    pool.step(&NOW, &mut |_, _, _| false);
    assert_eq!(toy.memory.budget.used(), 0);
}
