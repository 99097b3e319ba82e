//! The metadata oracle: checks what leaders say that they committed.

use std::collections::{BTreeMap, VecDeque};

use amalgam_cluster::IntervalMap;
use amalgam_cluster::ids::Creator;
use amalgam_cluster::overlay::{
    Catalog, Edit, OverlayEvent, RequestId, RingSegment, Summary, Term, Version, position,
};

/// A batch that a leader proposed.
type Proposed = (Version, Vec<Edit>);

/// All committed batches in order.
///
/// It checks invariant 2 of the overlay: one batch of a creator is committed under a sequence
/// number, and every later leader holds it. It applies committed batches to a catalog of its own; a
/// leader's digest must equal that catalog's.
#[derive(Debug, Default)]
pub struct MetadataOracle {
    proposed: BTreeMap<(Creator, u64), Vec<Proposed>>,
    committed: BTreeMap<(Creator, u64), Vec<Edit>>,
    truth: Catalog,
    /// The latest active term at each position.
    terms: IntervalMap<Term>,
    /// Whether disks may rot, so that replicas may become unreadable.
    pub has_rot: bool,
    /// Whether disks may hang, so that a node may die before it could tell what was committed. Then
    /// a leader may hold more than one batch of which the oracle has not heard.
    pub has_hangs: bool,
    /// Whether all nodes and their disks were lost once.
    has_lost_all: bool,
    /// Violations that were found.
    pub violations: Vec<String>,
    /// Number of committed edits.
    pub edits: u64,
    /// Number of times that a segment got another leader or group.
    pub takeovers: u64,
}

impl MetadataOracle {
    /// The catalog of all committed batches.
    pub fn truth(&self) -> &Catalog {
        &self.truth
    }

    /// The edits of a committed batch.
    pub fn edits_of(&self, creator: Creator, version: Version) -> &[Edit] {
        self.committed.get(&(creator, version.sequence)).map_or(&[], Vec::as_slice)
    }

    /// All nodes and their disks are lost: nothing that was committed has to be anywhere.
    pub fn forget(&mut self) {
        self.proposed.clear();
        self.committed.clear();
        self.truth = Catalog::default();
        self.has_lost_all = true;
    }

    /// Takes an event of a node's log.
    pub fn on_event(&mut self, event: &OverlayEvent) {
        match event {
            OverlayEvent::Proposed(creator, version, edits) => {
                let same = self.proposed.entry((*creator, version.sequence)).or_default();
                same.push((*version, edits.clone()));
            }
            OverlayEvent::Committed(creator, version) => self.on_committed(*creator, *version),
            OverlayEvent::BecameLeader(segment, term, held) => self.on_leads(*segment, *term, held),
            OverlayEvent::ChunksLost(source, chunks) => {
                self.violations.push(format!("{chunks:?} of {source:?} cannot be read"));
            }
            OverlayEvent::ChunksUnreadable(..) if self.has_rot => {}
            OverlayEvent::MetadataLost(..) if self.has_lost_all => {}
            OverlayEvent::ChunksUnreadable(..)
            | OverlayEvent::ReplicaLost(..)
            | OverlayEvent::MetadataLost(..) => {
                self.violations.push(format!("replicas are lost: {event:?}"));
            }
            OverlayEvent::ReplicaDiverged(creator, version) => {
                self.violations.push(format!("replicas of {creator:?} differ at {version:?}"));
            }
        }
    }

    /// A node was told that its request was executed.
    pub fn on_answer(&mut self, creator: Creator, request: RequestId, epoch: u64) {
        let batch = self.committed.get(&(creator, epoch));
        if !batch.is_some_and(|batch| batch.iter().any(|edit| edit.request == request)) {
            self.violations.push(format!("{request:?} was answered and is not committed"));
        }
    }

    fn sequence(&self, creator: Creator) -> u64 {
        self.truth.version(creator).map_or(0, |version| version.sequence)
    }

    fn on_committed(&mut self, creator: Creator, version: Version) {
        let sequence = version.sequence;
        let proposed = self.proposed.get(&(creator, sequence)).into_iter().flatten();
        let Some((_, edits)) = proposed.into_iter().find(|(of, _)| *of == version).cloned() else {
            return self.violations.push(format!("{version:?} was never proposed"));
        };
        match self.committed.get(&(creator, sequence)) {
            Some(other) if *other != edits => {
                self.violations.push(format!("two batches are {version:?} of {creator:?}"));
            }
            Some(_) => {}
            None if sequence == self.sequence(creator) + 1 => self.commit(creator, version, edits),
            None => self.violations.push(format!("{version:?} of {creator:?} leaves a gap")),
        }
    }

    fn commit(&mut self, creator: Creator, version: Version, edits: Vec<Edit>) {
        self.truth.apply(creator, version, &edits);
        self.edits += edits.len() as u64;
        self.committed.insert((creator, version.sequence), edits);
    }

    /// A new leader must hold everything committed; of each creator it may hold one batch more,
    /// which is committed by that.
    fn on_leads(&mut self, segment: RingSegment, term: Term, held: &[Summary]) {
        // The node may learn so late that it leads that another leads already, in a part of the
        // segment.
        let is_new = |position: u64| {
            let is_new = self.terms.get(position).is_none_or(|latest| *latest <= term);
            segment.contains(position) && is_new
        };
        let new: Vec<Creator> = {
            let known = self.truth.summaries().map(|truth| truth.creator);
            let all = known.chain(held.iter().map(|summary| summary.creator));
            all.filter(|creator| is_new(position(*creator))).collect()
        };
        for part in segment.parts() {
            let later: Vec<_> = {
                let over = self.terms.over(part.clone()).filter(|(_, latest)| **latest > term);
                over.map(|(span, latest)| (span, *latest)).collect()
            };
            self.terms.assign(part, Some(term));
            later.into_iter().for_each(|(span, latest)| self.terms.assign(span, Some(latest)));
        }
        self.takeovers += 1;
        for creator in new {
            match held.iter().find(|summary| summary.creator == creator) {
                Some(summary) => self.check_held(summary),
                None => self.violations.push(format!("a leader lacks {creator:?}")),
            }
        }
    }

    /// The proposed batches that make a catalog what a leader holds; None if there are none.
    fn untold(&self, catalog: Catalog, held: &Summary) -> Option<VecDeque<Proposed>> {
        let creator = held.creator;
        let next = catalog.version(creator).map_or(0, |version| version.sequence) + 1;
        let proposed = self.proposed.get(&(creator, next)).into_iter().flatten();
        for (version, edits) in proposed {
            let mut tried = Catalog::default();
            if let Some(snapshot) = catalog.snapshot(creator) {
                tried.install(&snapshot);
            }
            tried.apply(creator, *version, edits);
            let batches = if next < held.version.sequence {
                self.untold(tried, held)
            } else {
                let digest = tried.summary(creator).map(|tried| tried.digest);
                (digest == Some(held.digest)).then(VecDeque::new)
            };
            if let Some(mut batches) = batches {
                batches.push_front((*version, edits.clone()));
                return Some(batches);
            }
        }
        None
    }

    fn check_held(&mut self, summary: &Summary) {
        let (creator, sequence) = (summary.creator, self.sequence(summary.creator));
        let untold = summary.version.sequence.saturating_sub(sequence);
        if untold == 1 || untold > 1 && self.has_hangs {
            let mut tried = Catalog::default();
            if let Some(snapshot) = self.truth.snapshot(creator) {
                tried.install(&snapshot);
            }
            if let Some(batches) = self.untold(tried, summary) {
                for (version, edits) in batches {
                    self.commit(creator, version, edits);
                }
                return;
            }
        }
        let digest = self.truth.summary(creator).map(|truth| truth.digest);
        if summary.version.sequence != sequence || Some(summary.digest) != digest {
            let held = summary.version;
            self.violations.push(format!("a leader holds {held:?} of {creator:?}, not {sequence}"));
        }
    }
}
