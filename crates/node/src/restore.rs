//! Restores a cluster whose coordinator has lost its data, from the copies of its state in the
//! folders of the nodes' backups.
//!
//! The restored state has the newest copy's members, groups and numbers, so the nodes recognize
//! their logs when they start again, and take up metadata and replicas from them as after a stop of
//! all nodes. It is complete if the copies of all members are there: see `state_file`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use amalgam_cluster::coordinator::Coordinator;
use amalgam_cluster::ids::NodeId;
use amalgam_cluster::overlay::{Group, OverlaySettings};

use crate::membership::ClusterState;
use crate::state_file::{SavedState, read_state_file};

/// What a restored cluster would have, and what is missing.
#[derive(Debug)]
pub struct RestorePlan {
    /// The state to write.
    pub state: ClusterState,
    /// The revision of the newest copy.
    pub revision: u64,
    /// The number of members at that revision.
    pub members: usize,
    /// The names of the members whose copies are missing.
    pub missing: Vec<String>,
    /// The number of groups of super peers.
    pub groups: usize,
    /// The number of groups of which too few members are among the copies for a takeover
    /// ([`Group::witnesses`]).
    pub broken_groups: usize,
}

impl RestorePlan {
    /// Reads the copies of nodes.
    ///
    /// # Errors
    ///
    /// If a copy cannot be read, or they are of different clusters; the text names the file.
    pub fn read(files: &[PathBuf]) -> Result<Self, String> {
        let copies: Vec<SavedState> =
            files.iter().map(|path| read_state_file(path)).collect::<Result<_, _>>()?;
        let clusters = copies.iter().map(|copy| copy.state.cluster);
        if let Some((path, _)) = files
            .iter()
            .zip(clusters)
            .find(|(_, cluster)| Some(*cluster) != copies.first().map(|one| one.state.cluster))
        {
            return Err(format!("{}: it is of another cluster than the others", path.display()));
        }
        let nodes: BTreeSet<NodeId> = copies.iter().map(|copy| copy.me.node).collect();
        // An incarnation that joined after the newest copy was written acted on nothing, but may
        // have begun a log.
        let mut names = BTreeMap::new();
        for (name, peer) in copies.iter().flat_map(|copy| copy.state.coordinator.names()) {
            let known = names.entry(name.clone()).or_insert(*peer);
            *known = (*known).max(*peer);
        }
        let newest = copies.into_iter().max_by_key(|copy| copy.state.coordinator.view().revision);
        let mut state = newest.ok_or("no copy of a cluster's state was given")?.state;
        let view = state.coordinator.view().clone();
        let missing = names
            .iter()
            .filter(|(_, peer)| {
                view.members.contains_key(&peer.node) && !nodes.contains(&peer.node)
            })
            .map(|(name, _)| name.clone())
            .collect();
        let has_witnesses = |group: &Group| {
            let here = group.members.iter().filter(|peer| nodes.contains(&peer.node));
            here.count() >= group.witnesses()
        };
        let groups = view.groups.iter().count();
        let broken_groups = view.groups.iter().filter(|(_, group)| !has_witnesses(group)).count();
        let (revision, members) = (view.revision, view.members.len());
        state.coordinator = Coordinator::resume(OverlaySettings::default(), 0, view, names);
        Ok(Self { state, revision, members, missing, groups, broken_groups })
    }

    /// Whether nothing that was acknowledged can be missing, as far as the copies show it.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.broken_groups == 0
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::coordinator::Proposal;
    use amalgam_cluster::overlay::{Peer, Term};

    use super::*;
    use crate::state_file::{STATE_FILE, StateFile};

    fn join(state: &mut ClusterState, name: &str) -> Peer {
        state.join(name, (&format!("{name}:1"), ""), 0).expect("there is room").peer
    }

    #[test]
    fn the_newest_copy_counts_and_what_is_missing_is_told() {
        let folder = std::env::temp_dir().join(format!("amalgam-plan-{}", std::process::id()));
        let mut state = ClusterState::new(7, 8, 1_000);
        let peers = ["a", "b", "c"].map(|name| join(&mut state, name));
        let mut files = Vec::new();
        let save = |state: &ClusterState, name: &str, me| {
            let folder = folder.join(name);
            std::fs::create_dir_all(&folder).expect("a folder");
            StateFile::new(&folder, false, me).write(&state.to_bytes()).expect("it is written");
            folder.join(STATE_FILE)
        };
        files.push(save(&state, "a", peers[0]));
        let view = state.coordinator.view();
        let segment = view.segment(peers[0]).expect("a super peer");
        let group = Group { term: Term { number: 1, leader: peers[0] }, members: peers.to_vec() };
        let regroup = Proposal::Regroup { segment, group, replaces: Vec::new() };
        assert_eq!(state.coordinator.propose(&regroup, 0), Ok(()));
        files.push(save(&state, "b", peers[1]));
        files.push(save(&state, "c", peers[2]));
        let plan = RestorePlan::read(&files).expect("copies");
        assert!(plan.is_complete() && plan.members == 3 && plan.groups > 0, "{plan:?}");
        assert_eq!(plan.state.snapshot(), state.snapshot());
        let plan = RestorePlan::read(&files[..2]).expect("copies");
        assert_eq!((plan.missing, plan.broken_groups), (vec!["c".to_owned()], 0));
        let plan = RestorePlan::read(&files[2..]).expect("a copy");
        assert!(plan.missing.len() == 2 && plan.broken_groups == plan.groups, "{plan:?}");
        assert!(RestorePlan::read(&[]).is_err());
        let mut other = ClusterState::new(9, 8, 1_000);
        let stranger = join(&mut other, "x");
        files.push(save(&other, "x", stranger));
        let error = RestorePlan::read(&files).expect_err("two clusters");
        assert!(error.contains("another cluster") && error.contains("/x/"), "{error}");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
