//! Named items are as on one server: of all `add`s of a key one is stored, every `incr` that was
//! answered counts once, however often messages are lost, repeated or late, whoever asks, and
//! while single keys and whole partitions move between nodes.

use amalgam_sim::{Faults, Namer, Planted, World, seeds};

/// Items have no backups yet, so nobody crashes.
const FAULTS: Faults = Faults { crashes: false, ..Faults::ALL };

#[test]
fn adds_are_stored_once_and_increments_count_once() {
    let (mut answered, mut keys, mut moves) = (0, 0, 0);
    for seed in seeds(300, 3) {
        let mut world: World<Namer> = World::new(seed, 4, FAULTS, Planted::Nothing);
        world.run(8_000);
        world.calm();
        assert_eq!(world.waiting(), 0, "seed {seed}: everybody is answered");
        world.read_counters();
        let names = &world.common.names;
        assert_eq!(world.common.wrong, Vec::<String>::new(), "seed {seed}");
        assert!(names.stored.values().all(|stored| *stored == 1), "{seed}: {:?}", names.stored);
        assert_eq!(names.read, names.counted, "seed {seed}");
        assert_eq!(world.common.ledger.violations, Vec::<String>::new(), "seed {seed}");
        answered += names.answered;
        keys += names.stored.len();
        moves += names.moves;
    }
    println!("{answered} operations, {keys} keys that were added, {moves} moves");
    assert!(answered > 500 && keys > 60 && moves > 20, "the seeds reach too little");
}
