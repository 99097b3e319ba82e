//! Compares the map with a plain map of ids, with leaves and nodes so small that all levels split
//! and merge all the time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::{COUNTER_MAX, ChunkId, Creator, IdRange, NodeId};

/// Ids per zone.
const ZONE: u64 = 96;

fn id(creator: u16, counter: u64) -> ChunkId {
    ChunkId::new(Creator::new(creator).expect("a creator"), counter).expect("an id")
}

fn node(number: u16) -> NodeId {
    NodeId::new(number).expect("a node")
}

/// Distinct placements: of an owner alone, and with backups in two orders.
fn placement(number: u16) -> Placement {
    let owner = node(number / 3);
    let backups = [node(50_000), node(50_001), node(50_002 + number)];
    match number % 3 {
        0 => Placement::of_owner(owner),
        1 => Placement::new(owner, &backups).expect("valid"),
        _ => Placement::new(owner, &[node(50_001), node(50_000)]).expect("valid"),
    }
}

/// Ids that are compared: at both ends of creators, at adjacent creators, and far from any other.
fn zones() -> [ChunkId; 6] {
    let last = COUNTER_MAX + 1 - ZONE;
    [id(0, 0), id(0, 70_000), id(0, last), id(1, 0), id(1, 1 << 33), id(0xFFFE, last)]
}

fn bits_of_zone(first: ChunkId) -> std::ops::Range<u64> {
    first.bits()..first.bits() + ZONE
}

/// The placement of each watched id that has one.
type Model = BTreeMap<u64, Placement>;

#[derive(Clone, Debug)]
enum Step {
    Insert(IdRange, Placement),
    Migrate(IdRange, Placement),
    Delete(IdRange),
    Assign(IdRange, Option<Placement>),
    AssignAll(IdRange, Placement),
}

impl Step {
    fn ids(&self) -> IdRange {
        match self {
            Self::Insert(ids, _)
            | Self::Migrate(ids, _)
            | Self::Delete(ids)
            | Self::AssignAll(ids, _)
            | Self::Assign(ids, _) => *ids,
        }
    }
}

/// Parts of `ids`, some with gaps between them.
fn parts(ids: IdRange, placement: Placement) -> Vec<(IdRange, Option<Placement>)> {
    let (mut parts, mut at) = (Vec::new(), ids.start());
    for (place, length) in [1, 3, 2, 5, 4, 1].into_iter().cycle().take(40).enumerate() {
        let end = (at + length).min(ids.end());
        if at < end && place % 4 < 3 {
            let others = [Some(placement), Some(self::placement(2)), None];
            parts.push((IdRange::from_bits(at, end), others[place % 4]));
        }
        at = end;
    }
    parts
}

fn some_ids() -> impl Strategy<Value = IdRange> {
    let within = (0..6usize, 0..ZONE, prop_oneof![Just(1u64), 1u64..6, 1u64..ZONE]);
    let within = within.prop_map(|(zone, start, length)| {
        let first = ChunkId::from_bits(zones()[zone].bits() + start).expect("an id");
        IdRange::starting_at(first, length.min(ZONE - start)).expect("a range")
    });
    // From one zone far into the next: leaves and nodes are covered whole.
    let across = (0..2usize, 0..ZONE, 0..ZONE).prop_map(|(zone, start, end)| {
        let bits = |zone: usize, offset| ChunkId::from_bits(zones()[zone].bits() + offset);
        let (first, last) = (bits(zone, start), bits(zone + 1, end));
        IdRange::new(first.expect("an id"), last.expect("an id")).expect("a range")
    });
    prop_oneof![30 => within, 1 => across]
}

fn some_step(placements: u16) -> impl Strategy<Value = Step> {
    let some_placement = (0..placements).prop_map(placement);
    (some_ids(), some_placement, 0..12u8).prop_map(|(ids, placement, what)| match what {
        10..12 => Step::AssignAll(ids, placement),
        0..3 => Step::Insert(ids, placement),
        3..6 => Step::Migrate(ids, placement),
        6 => Step::Delete(ids),
        7 => Step::Assign(ids, None),
        _ => Step::Assign(ids, Some(placement)),
    })
}

fn some_limits() -> impl Strategy<Value = MapLimits> {
    let region_entries = prop_oneof![4usize..16, Just(usize::MAX)];
    let range_ids = prop_oneof![Just(1u64), 5u64..40, Just(2_000_000)];
    (range_ids, 4usize..12, 4usize..6, 1usize..20, region_entries).prop_map(|limits| {
        let (range_ids_max, leaf_entries_max, node_leaves_max, _, region_entries_min) = limits;
        MapLimits {
            range_ids_max,
            leaf_entries_max,
            node_leaves_max,
            placement_codes_max: limits.3,
            region_entries_min,
        }
    })
}

fn watched(ids: IdRange) -> impl Iterator<Item = u64> {
    let inside = move |bits: &u64| ids.contains(ChunkId::from_bits(*bits).expect("an id"));
    zones().into_iter().flat_map(bits_of_zone).filter(inside)
}

/// Applies a step to both; a refused step changes neither.
fn apply(map: &mut RangeMap, model: &mut Model, step: &Step) {
    if let Step::AssignAll(ids, placement) = step {
        let parts = parts(*ids, *placement);
        map.assign_all(&parts);
        parts.iter().for_each(|(ids, placement)| update(model, *ids, *placement));
        return;
    }
    let (ids, is_whole) = (step.ids(), step.ids().len() <= ZONE);
    let owned = watched(ids).find(|bits| model.contains_key(bits));
    let unowned = watched(ids).find(|bits| !model.contains_key(bits));
    let error = |bits: u64| ChunkId::from_bits(bits).expect("an id");
    // The model does not see all ids of a range across zones.
    let (result, expected, placement) = match step {
        Step::Insert(ids, placement) => {
            let expected = owned.map_or(Ok(()), |bits| Err(RangeError::Owned(error(bits))));
            (map.insert(*ids, *placement), expected, Some(*placement))
        }
        Step::Migrate(ids, placement) => {
            let expected = unowned.map_or(Ok(()), |bits| Err(RangeError::Unowned(error(bits))));
            (map.migrate(*ids, *placement), expected, Some(*placement))
        }
        Step::Delete(ids) => {
            let expected = unowned.map_or(Ok(()), |bits| Err(RangeError::Unowned(error(bits))));
            (map.delete(*ids), expected, None)
        }
        Step::Assign(ids, placement) => {
            map.assign(*ids, *placement);
            (Ok(()), Ok(()), *placement)
        }
        Step::AssignAll(..) => unreachable!("it was applied"),
    };
    if is_whole {
        assert_eq!(result, expected, "{step:?}");
    }
    if result.is_ok() {
        update(model, ids, placement);
    }
}

fn update(model: &mut Model, ids: IdRange, placement: Option<Placement>) {
    for bits in watched(ids) {
        match placement {
            Some(placement) => model.insert(bits, placement),
            None => model.remove(&bits),
        };
    }
}

/// Ids in the longest range around an id; named ids have their own limit.
fn length_max(map: &RangeMap, id: ChunkId) -> u64 {
    if id.creator().is_named() { 1 << 44 } else { map.limits().range_ids_max }
}

fn compare(map: &RangeMap, model: &Model) {
    let cell = |bits: u64| map.cell(bits);
    // A prefetch changes nothing, wherever ids lie.
    let all: Vec<ChunkId> = zones()
        .into_iter()
        .chain(model.keys().map(|bits| ChunkId::from_bits(*bits).expect("an id")))
        .collect();
    map.fetch(&all);
    for zone in zones().map(bits_of_zone) {
        for bits in zone.clone() {
            let id = ChunkId::from_bits(bits).expect("an id");
            let expected = model.get(&bits).copied();
            assert_eq!(map.placement(id), expected, "{id}");
            let (ids, placement) = map.around(id);
            assert_eq!(placement, expected, "{id}");
            assert!(ids.contains(id) && ids.len() <= length_max(map, id));
            let same =
                |other: &u64| cell(*other) == cell(bits) && model.get(other) == model.get(&bits);
            let start = (zone.start..bits).rev().take_while(same).last().unwrap_or(bits);
            let last = (bits + 1..zone.end).take_while(same).last().unwrap_or(bits);
            // At a zone's border the model does not know how the range continues.
            assert_eq!(ids.first().bits().max(zone.start), start, "{id}");
            assert_eq!(ids.last().bits().min(zone.end - 1), last, "{id}");
            assert_eq!(map.find(id).map(|range| range.ids), expected.map(|_| ids));
        }
    }
}

/// Iteration over all ranges agrees with single lookups.
fn compare_walk(map: &RangeMap, model: &Model) {
    let mut seen = 0;
    let mut last = None;
    for range in map.ranges() {
        assert!(last.is_none_or(|last| last < range.ids.first()), "ranges ascend");
        last = Some(range.ids.last());
        assert_eq!(map.find(range.ids.first()), Some(range));
        assert_eq!(map.find(range.ids.last()), Some(range));
        for bits in watched(range.ids) {
            assert_eq!(model.get(&bits), Some(&range.placement));
            seen += 1;
        }
    }
    assert_eq!(seen, model.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn it_behaves_as_a_plain_map(
        limits in some_limits(),
        steps in (2u16..24).prop_flat_map(|most| prop::collection::vec(some_step(most), 1..160)),
    ) {
        let mut map = RangeMap::new(limits);
        let mut model = Model::new();
        for (index, step) in steps.iter().enumerate() {
            apply(&mut map, &mut model, step);
            map.check();
            if index % 16 == 0 {
                compare(&map, &model);
            }
        }
        compare(&map, &model);
        // Cut to single ids, a range across zones is too long to walk.
        if limits.range_ids_max > 1_000_000 && steps.iter().all(|step| step.ids().len() < 1 << 20) {
            compare_walk(&map, &model);
        }
    }

    #[test]
    fn a_cache_returns_what_it_learned_last(
        steps in prop::collection::vec((some_ids(), 0u16..5, 0..4u8), 1..200),
    ) {
        let mut cache = RangeCache::new(0);
        let mut model = Model::new();
        for (ids, number, what) in steps {
            if what == 0 {
                cache.forget(ids);
                for bits in watched(ids) {
                    model.remove(&bits);
                }
            } else {
                cache.learn(Range { ids, placement: placement(number) });
                model.extend(watched(ids).map(|bits| (bits, placement(number))));
            }
            let asked = ids.first();
            let known = cache.find(asked).map(|range| range.placement);
            prop_assert_eq!(known, model.get(&asked.bits()).copied());
        }
    }
}

#[test]
fn chunks_that_migrate_back_leave_no_entries() {
    let mut map = RangeMap::new(MapLimits {
        leaf_entries_max: 8,
        node_leaves_max: 4,
        ..MapLimits::default()
    });
    let all = IdRange::starting_at(id(1, 0), 10_000).expect("a range");
    assert_eq!(map.insert(all, placement(0)), Ok(()));
    let single = |counter| IdRange::single(id(1, counter));
    for counter in (0..10_000).step_by(3) {
        assert_eq!(map.migrate(single(counter), placement(1)), Ok(()));
    }
    map.check();
    let (leaves, bytes) = (map.leaves(), map.bytes());
    assert_eq!(map.ranges().count(), 6667);
    assert!(leaves > 500, "{leaves}");
    for counter in (0..10_000).step_by(3) {
        assert_eq!(map.migrate(single(counter), placement(0)), Ok(()));
    }
    map.check();
    assert_eq!(map.ranges().count(), 1);
    assert!(map.leaves() * 3 < leaves && map.bytes() * 3 < bytes, "{} leaves", map.leaves());
    map.assign(all, None);
    assert_eq!((map.ranges().count(), map.find(id(1, 5))), (0, None));
}

#[test]
fn many_moves_make_regions_and_few_left_make_leaves() {
    let mut map = RangeMap::new(MapLimits {
        leaf_entries_max: 4,
        node_leaves_max: 4,
        region_entries_min: 12,
        ..MapLimits::default()
    });
    let all = IdRange::starting_at(id(1, 0), 640).expect("a range");
    assert_eq!(map.insert(all, placement(0)), Ok(()));
    let single = |counter| IdRange::single(id(1, counter));
    for counter in (0..640).step_by(2) {
        assert_eq!(map.migrate(single(counter), placement(1)), Ok(()));
        map.check();
    }
    assert!(map.regions() >= 9, "{} regions of 10", map.regions());
    for counter in (0..640).step_by(2) {
        assert_eq!(map.placement(id(1, counter)), Some(placement(1)));
        assert_eq!(map.migrate(single(counter), placement(0)), Ok(()));
        map.check();
    }
    assert_eq!((map.regions(), map.ranges().count()), (0, 1));
}

#[test]
fn codes_of_unused_placements_are_freed() {
    let limits = MapLimits { placement_codes_max: 7, ..MapLimits::default() };
    let mut map = RangeMap::new(limits);
    let all = IdRange::starting_at(id(1, 0), 5000).expect("a range");
    map.assign(all, Some(placement(0)));
    let scatter = |map: &mut RangeMap, base: u16| {
        for counter in 0..2500 {
            let number = base + (counter % 2) as u16;
            map.assign(IdRange::single(id(1, 2 * counter)), Some(placement(number)));
        }
        map.check();
        map.bytes()
    };
    let first = scatter(&mut map, 1);
    // Other placements take the codes, generation after generation.
    let later = (1..6).map(|generation| scatter(&mut map, 10 * generation)).last().expect("some");
    assert!(later < first * 2, "{first} bytes at first, {later} later");
}

#[test]
fn invalid_edits_change_nothing() {
    let mut map = RangeMap::new(MapLimits::default());
    let ids = |start, length| IdRange::starting_at(id(2, start), length).expect("a range");
    assert_eq!(map.insert(ids(10, 10), placement(1)), Ok(()));
    let before: Vec<_> = map.ranges().collect();
    assert_eq!(map.insert(ids(0, 30), placement(2)), Err(RangeError::Owned(id(2, 10))));
    assert_eq!(map.insert(ids(19, 1), placement(2)), Err(RangeError::Owned(id(2, 19))));
    assert_eq!(map.migrate(ids(15, 6), placement(2)), Err(RangeError::Unowned(id(2, 20))));
    assert_eq!(map.delete(ids(9, 2)), Err(RangeError::Unowned(id(2, 9))));
    assert!(map.ranges().eq(before));
    // All ids of a creator at once: of a node, and of a partition of named ids.
    for creator in [0xEFFF, 0xFFFE] {
        let whole = IdRange::starting_at(id(creator, 0), COUNTER_MAX + 1).expect("a range");
        assert_eq!(map.insert(whole, placement(3)), Ok(()));
        let last = map.find(id(creator, COUNTER_MAX)).expect("owned");
        assert_eq!(last.ids.last().counter(), COUNTER_MAX);
        assert!(last.ids.len() <= length_max(&map, last.ids.last()));
    }
    map.check();
}

#[test]
fn limits_out_of_bounds_are_clamped() {
    let limits = MapLimits {
        range_ids_max: 0,
        leaf_entries_max: 0,
        node_leaves_max: usize::MAX,
        placement_codes_max: usize::MAX,
        region_entries_min: 0,
    };
    let mut map = RangeMap::new(limits);
    for counter in (0..1000).rev() {
        map.assign(IdRange::single(id(1, counter * counter)), Some(placement(counter as u16 % 9)));
    }
    map.check();
    assert_eq!(map.ranges().count(), 1000);
    assert!(map.ranges().all(|range| range.ids.len() == 1));
}

#[test]
fn a_cache_keeps_its_limit_and_what_is_looked_up() {
    let limit = 128 << 10;
    let mut cache = RangeCache::new(limit);
    let hot = id(1, 7);
    cache.learn(Range { ids: IdRange::single(hot), placement: placement(5) });
    for counter in 0..200_000u64 {
        // Scattered over many creators, with more placements than there are codes.
        let ids = IdRange::single(id(
            (counter % 300) as u16 + 2,
            counter.wrapping_mul(0x9E37) % 1_000_000,
        ));
        cache.learn(Range { ids, placement: placement((counter % 7000) as u16) });
        assert!(cache.bytes() <= limit, "{} bytes", cache.bytes());
        assert!(cache.find(hot).is_some(), "what is asked for stays");
        if counter % 3 == 0 {
            cache.forget(ids);
            assert_eq!(cache.find(ids.first()), None);
        }
    }
    let CacheStatistics { hits, rotations, .. } = cache.statistics();
    assert!(hits >= 200_000 && rotations > 10, "{hits} hits, {rotations} rotations");
}
