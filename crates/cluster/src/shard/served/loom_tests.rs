//! Models of the protocol with one thread next to the service's; the engine is one atomic.

use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::*;

fn id() -> ChunkId {
    ChunkId::named(0)
}

/// A node that serves one id, whose lease runs.
fn served(has_backups: bool) -> Arc<Served> {
    let served = Arc::new(Served::new(Arc::new(UnacknowledgedIds::new(has_backups))));
    let ids = || [id().bits()..id().bits() + 1].into_iter();
    served.publish(ids(), ids());
    served.set_deadline(1);
    served
}

/// A scan that begins once earlier writes have ended finds each write that was answered.
#[test]
fn a_scan_finds_what_others_have_written() {
    loom::model(|| {
        let (served, engine) = (served(false), Arc::new(AtomicU64::new(0)));
        let writer = {
            let (mut thread, engine) = (Arc::clone(&served).thread(), Arc::clone(&engine));
            thread::spawn(move || {
                thread.refresh();
                let begins = thread.begin_write(id(), 0);
                if begins {
                    engine.store(1, Ordering::Relaxed);
                    thread.end_write(0);
                }
                begins
            })
        };
        served.withdraw();
        served.publish([id().bits()..id().bits() + 1].into_iter(), std::iter::empty());
        let found = served.earlier_writes_have_ended().then(|| engine.load(Ordering::Relaxed));
        if writer.join().expect("it ends") {
            assert_ne!(found, Some(0), "the scan missed a write that was answered");
        }
    });
}

/// A request that begins after another node has the id is not answered from here.
#[test]
fn nothing_is_answered_for_an_id_that_another_node_has() {
    loom::model(|| {
        let (served, has_moved) = (served(false), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (mut thread, has_moved) = (Arc::clone(&served).thread(), Arc::clone(&has_moved));
            thread::spawn(move || {
                let began_late = has_moved.load(Ordering::Acquire);
                thread.refresh();
                let answers = thread.may_read(id()) && thread.may_answer(id(), 0);
                assert!(!(began_late && answers));
            })
        };
        served.withdraw();
        has_moved.store(true, Ordering::Release);
        served.publish(std::iter::empty(), std::iter::empty());
        reader.join().expect("it ends");
    });
}

/// A change that a read shows has reached the backups.
#[test]
fn what_backups_lack_is_not_answered() {
    loom::model(|| {
        let (served, engine) = (served(true), Arc::new(AtomicU64::new(0)));
        let has_reached = Arc::new(AtomicBool::new(false));
        let reader = {
            let (mut thread, engine) = (Arc::clone(&served).thread(), Arc::clone(&engine));
            let has_reached = Arc::clone(&has_reached);
            thread::spawn(move || {
                thread.refresh();
                let may_read = thread.may_read(id());
                let is_new = engine.load(Ordering::Acquire) == 1;
                if may_read && thread.may_answer(id(), 0) && is_new {
                    assert!(has_reached.load(Ordering::Relaxed));
                }
            })
        };
        served.unacknowledged.add(id());
        engine.store(1, Ordering::Release);
        has_reached.store(true, Ordering::Relaxed);
        served.unacknowledged.remove(id());
        reader.join().expect("it ends");
    });
}

/// A change that the service drops, since the ids have another owner, is not answered.
#[test]
fn what_a_failover_has_lost_is_not_answered() {
    loom::model(|| {
        let (served, engine) = (served(true), Arc::new(AtomicU64::new(0)));
        served.unacknowledged.add(id());
        engine.store(1, Ordering::Release);
        let reader = {
            let (mut thread, engine) = (Arc::clone(&served).thread(), Arc::clone(&engine));
            thread::spawn(move || {
                thread.refresh();
                let is_lost = engine.load(Ordering::Acquire) == 1;
                assert!(!is_lost || !thread.may_answer(id(), 0));
            })
        };
        served.withdraw();
        served.unacknowledged.remove(id());
        reader.join().expect("it ends");
    });
}
