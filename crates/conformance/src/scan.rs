//! Scans visit whatever stays, at least once, also while the table changes under them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_index::{Cursor, Engine, Worker};

use crate::harness::{Session, Stop, configuration, open, with_maintenance};

fn stable(number: usize) -> Vec<u8> {
    format!("stable {number}").into_bytes()
}

/// Scans to the end in slices of `budget`, calling `between` after each; counts visits by key.
fn scan<'i, I: Engine>(
    session: &mut Session<'i, I>,
    budget: usize,
    mut between: impl FnMut(&mut Session<'i, I>),
) -> BTreeMap<Vec<u8>, usize> {
    const MAX_SLICES: usize = 10_000_000;
    let mut visits = BTreeMap::new();
    let mut cursor = Cursor::START;
    for _ in 0..MAX_SLICES {
        let next = session.worker.scan(cursor, budget, &mut |item| {
            *visits.entry(item.key.to_vec()).or_insert(0) += 1;
            ControlFlow::Continue(())
        });
        between(session);
        match next {
            Some(next) => cursor = next,
            None => return visits,
        }
    }
    panic!("the scan does not end")
}

/// In a table at rest each item is visited once, whatever the budget.
pub fn at_rest<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    assert!(scan(&mut session, 10, |_| {}).is_empty());
    for number in 0..3000 {
        session.set(&stable(number), number.to_string().as_bytes());
    }
    session.settle();
    for budget in [1, 7, 100, usize::MAX] {
        let visits = scan(&mut session, budget, |_| {});
        assert_eq!(visits.len(), 3000, "budget {budget}");
        assert!(visits.values().all(|count| *count == 1), "budget {budget}");
    }
}

/// Breaking ends a slice; going on from the cursor loses nothing.
pub fn breaks<I: Engine>() {
    let index: I = open(&configuration());
    let mut session = Session::new(&index);
    for number in 0..500 {
        session.set(&stable(number), b"v");
    }
    session.settle();
    let mut seen = std::collections::BTreeSet::new();
    let mut cursor = Some(Cursor::START);
    let mut breaks = 0;
    while let Some(from) = cursor {
        // Breaks at the first key that was not seen yet; those before it come again.
        cursor = session.worker.scan(from, usize::MAX, &mut |item| match seen
            .insert(item.key.to_vec())
        {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        breaks += 1;
        assert!(breaks <= 10_000, "the scan goes on");
    }
    assert_eq!(seen.len(), 500);
}

/// The table grows from few to many items while a scan is under way.
pub fn while_growing<I: Engine>() {
    for budget in [1, 16, 300] {
        let index: I = open(&configuration());
        let mut session = Session::new(&index);
        let present = 2000;
        for number in 0..present {
            session.set(&stable(number), b"stays");
            session.set(format!("gone {number}").as_bytes(), b"goes");
        }
        let mut turn = 0;
        let visits = scan(&mut session, budget, |session| {
            for _ in 0..10 {
                if turn < 20_000 {
                    session.set(format!("new {turn}").as_bytes(), b"comes");
                    session.delete(format!("gone {turn}").as_bytes());
                    turn += 1;
                }
            }
            session.worker_turn();
        });
        for number in 0..present {
            assert!(visits.contains_key(&stable(number)), "missed {number}, budget {budget}");
        }
    }
}

/// While other threads insert, replace, delete and expand, a scan visits each item that is present
/// throughout, whatever the budget.
pub fn beside_writers<I: Engine>() {
    let index: I = open(&configuration());
    let present = 5000;
    let mut session = Session::new(&index);
    for number in 0..present {
        session.set(&stable(number), b"stays");
    }
    let stop = AtomicBool::new(false);
    with_maintenance(&index, session.now, || {
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for thread in 0..2 {
                let (index, stop) = (&index, &stop);
                scope.spawn(move || {
                    let mut writer = Session::new(index);
                    let mut turn = 0_usize;
                    while !stop.load(Ordering::Relaxed) {
                        writer.set(format!("new {thread} {}", turn % 60_000).as_bytes(), b"comes");
                        writer.set(&stable(turn % present), &vec![b's'; turn % 50]);
                        if turn.is_multiple_of(3) {
                            let name = format!("new {thread} {}", turn / 3 % 60_000);
                            writer.delete(name.as_bytes());
                        }
                        turn += 1;
                        writer.worker.quiesce();
                    }
                });
            }
            for round in 0..10 {
                let visits = scan(&mut session, 50, |session| session.worker.quiesce());
                for number in 0..present {
                    assert!(visits.contains_key(&stable(number)), "missed {number} in {round}");
                }
            }
        });
    });
}
