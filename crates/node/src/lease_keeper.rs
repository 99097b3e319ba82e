//! The thread that talks to the coordinator for a node: renews its lease, submits its proposals,
//! and publishes new snapshots.
//!
//! Invariants of this module:
//! 1. The node's deadline is the end of the lease, counted from the moment at which the last
//!    answered keep-alive was *sent*, less a margin for clock drift. So the node stops before the
//!    coordinator can tell other nodes that it is gone.
//! 2. While the coordinator does not answer, the node serves until its deadline and no longer.
//! 3. The lease is renewed only while the event loop turns and the log's thread gets on: a node
//!    whose disk hangs loses its lease, and others take over.
//! 4. A node that stops leaves the cluster only after its event loop has ended, so no other node
//!    takes over what it still answers for.
//! 5. A renewal that is due waits for one proposal at most: a node whose super peer proposes faster
//!    than a slow coordinator answers keeps its lease.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use amalgam_cluster::coordinator::{CoordinatorError, Proposal};
use amalgam_cluster::overlay::Peer;

use crate::clock::{boot_ms, unix_ms};
use crate::membership::{Membership, MembershipError, Snapshot};
use crate::node_state::NodeState;
use crate::state_file::StateWriter;

/// A lease is renewed after 1/N of it.
const KEEP_ALIVE_PARTS: u64 = 4;
/// The event loop must have turned, and the log's thread have completed what it does, within the
/// last 1/N of the lease for the lease to be renewed, or within [`BEAT_MS_MIN`] if that is longer;
/// after half of 1/N the keeper looks again.
const BEAT_PARTS: u64 = 8;
/// A sound loop on a busy machine may take seconds for one turn, as after the restart of a whole
/// cluster, when it takes up what its log held.
const BEAT_MS_MIN: u64 = if cfg!(test) { 2_000 } else { 10_000 };
/// The target of what a node logs last, which no limit of the log's rate leaves out.
pub const FINAL_TARGET: &str = "amalgam::end";
/// Why a node stops that the coordinator no longer has as a member.
const LEASE_ENDED: &str = "the lease ended";
/// What is logged when the coordinator does not answer, and when the lease has ended by that.
const UNANSWERED: &str = "the coordinator does not answer; the node serves until its lease ends";
const EXPIRED: &str = "the lease ended, as the coordinator does not answer: until it does, the \
                       node answers errors";
/// Different proposals that wait to be submitted at most. The node repeats those that are dropped.
const PROPOSALS_MAX: usize = 64;
/// How long the keeper waits for the disk of the node's copy of the coordinator's state at a time.
const COPY_PATIENCE: Duration = Duration::from_millis(50);
/// Pause while the event loop ends.
const END_PAUSE: Duration = Duration::from_millis(1);
/// Clocks may drift apart by 1/N of a lease.
const DRIFT_PARTS: u64 = 100;

/// How long before its end at the coordinator a lease counts as ended here, in milliseconds.
fn margin_ms(lease_ms: u64) -> u64 {
    (lease_ms / 10).min(200) + lease_ms / DRIFT_PARTS
}

/// How long the event loop, or one operation on the log's disk, may take before the lease is not
/// renewed, in milliseconds.
fn beat_ms(lease_ms: u64) -> u64 {
    (lease_ms / BEAT_PARTS).max(BEAT_MS_MIN)
}

/// The pause between two renewals of a lease.
pub fn keep_alive_pause(lease_ms: u64) -> Duration {
    Duration::from_millis(lease_ms / KEEP_ALIVE_PARTS)
}

/// Runs `act`, which may take longer than the lease of a node that does not serve yet, and renews
/// the lease meanwhile, after each `pause` ([`keep_alive_pause`]).
pub fn keep_alive_during<T>(
    state: &NodeState,
    membership: &dyn Membership,
    me: Peer,
    pause: Duration,
    act: impl FnOnce() -> T,
) -> T {
    let lease_ms = membership.lease_ms();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let keeper = scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                let sent_ms = boot_ms();
                // A node whose disk hangs would be a member that never serves.
                let gets_on = state.log_stalled_ms(sent_ms) <= beat_ms(lease_ms);
                match gets_on.then(|| membership.keep_alive(me)) {
                    Some(Ok(())) => {
                        state.set_deadline_ms(sent_ms + lease_ms - margin_ms(lease_ms));
                    }
                    // The lease keeper that starts next finds out whether the lease has ended.
                    Some(Err(error)) => log::debug!(error:%; "the lease was not renewed"),
                    None => log::debug!("the disk of the log stands still: no renewal"),
                }
                std::thread::park_timeout(pause);
            }
        });
        let done = act();
        is_done.store(true, Ordering::Release);
        keeper.thread().unpark();
        done
    })
}

/// Keeps a node's lease until the node stops. If the lease ends first, stops the node.
pub fn keep_lease(
    state: &NodeState,
    membership: &dyn Membership,
    me: Peer,
    proposals: &Receiver<Proposal>,
    mut copy: Option<StateWriter<Arc<Snapshot>>>,
) {
    let poll = Duration::from_millis(membership.poll_ms());
    let mut renewal = Renewal::default();
    let mut waiting = VecDeque::new();
    while !state.is_stopping() {
        let now_ms = boot_ms();
        let is_kept = renewal.renew(state, membership, me, now_ms).and_then(|()| {
            // It may have been told to while it waited for the coordinator.
            if state.is_stopping() {
                return Ok(());
            }
            flush_if_due(state, membership);
            publish_snapshot(state, membership, me, copy.as_mut())
        });
        if let Err(reason) = is_kept {
            log::error!(target: FINAL_TARGET, node = me.node.get(); "{reason}: the node stops");
            if reason == LEASE_ENDED {
                state.stop_without_lease();
                break;
            }
            state.set_deadline_ms(0);
            return state.stop();
        }
        if waiting.is_empty() {
            match proposals.recv_timeout(poll) {
                Ok(proposal) => waiting.push_back(proposal),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(poll),
            }
        }
        let mut propose = |proposal: &Proposal| membership.propose(proposal);
        submit_proposals(&mut propose, proposals, &mut waiting, renewal.next_ms);
    }
    leave(state, membership, me);
}

/// Leaves the cluster once the event loop has ended. If it does not end, the lease will; one that
/// is over needs no end, and its coordinator may be one that does not answer. A member that was
/// voted out leaves too: others need not wait until it cannot have a lease any more.
fn leave(state: &NodeState, membership: &dyn Membership, me: Peer) {
    let until_ms = state.deadline_ms();
    // The gateway turns its clients away.
    state.set_deadline_ms(0);
    loop {
        if boot_ms() >= until_ms {
            return;
        }
        if state.has_loop_ended() {
            break;
        }
        std::thread::sleep(END_PAUSE);
    }
    let left = membership.leave(me);
    if let Err(error) = left
        && error != MembershipError::Refused(CoordinatorError::NoMember)
    {
        log::info!(error:%; "the node could not leave the cluster; its lease will end");
    }
}

/// When a lease is renewed, and what was logged about it.
#[derive(Debug, Default)]
struct Renewal {
    next_ms: u64,
    /// What was logged last about a coordinator that does not answer; empty if it answers.
    complaint: &'static str,
    has_stood_still: bool,
}

impl Renewal {
    /// Renews the lease if that is due and the event loop turns.
    ///
    /// # Errors
    ///
    /// The reason, if the lease has ended.
    fn renew(
        &mut self,
        state: &NodeState,
        membership: &dyn Membership,
        me: Peer,
        sent_ms: u64,
    ) -> Result<(), &'static str> {
        if sent_ms < self.next_ms {
            return Ok(());
        }
        let lease_ms = membership.lease_ms();
        let beat_ms = beat_ms(lease_ms);
        let (loop_stalled_ms, log_stalled_ms) =
            (state.since_beat_ms(sent_ms), state.log_stalled_ms(sent_ms));
        if loop_stalled_ms.max(log_stalled_ms) > beat_ms {
            self.next_ms = sent_ms + lease_ms / (2 * BEAT_PARTS);
            if !self.has_stood_still {
                let left_ms = state.deadline_ms().saturating_sub(sent_ms);
                log::warn!(
                    loop_stalled_ms, log_stalled_ms, left_ms;
                    "the event loop or the disk of the log stands still: the lease is not renewed"
                );
            }
            self.has_stood_still = true;
            let is_over = sent_ms >= state.deadline_ms() + margin_ms(lease_ms);
            return if is_over {
                Err("the lease ended, as the event loop or the disk of the log stood still")
            } else {
                Ok(())
            };
        }
        self.has_stood_still = false;
        match membership.keep_alive(me) {
            Ok(()) => {
                state.set_deadline_ms(sent_ms + lease_ms - margin_ms(lease_ms));
                self.next_ms = sent_ms + lease_ms / KEEP_ALIVE_PARTS;
                self.complaint = "";
            }
            Err(MembershipError::Refused(CoordinatorError::NoMember)) => {
                return Err(LEASE_ENDED);
            }
            Err(error) => {
                let left_ms = state.deadline_ms().saturating_sub(boot_ms());
                if let Some(complaint) = self.complain(left_ms) {
                    let is_final = complaint == EXPIRED;
                    let target = if is_final { FINAL_TARGET } else { module_path!() };
                    log::warn!(target: target, error:%, left_ms; "{complaint}");
                }
                self.next_ms = sent_ms + lease_ms / (4 * KEEP_ALIVE_PARTS);
            }
        }
        Ok(())
    }

    /// What to log about a coordinator that does not answer, once; `left_ms` is left of the lease.
    fn complain(&mut self, left_ms: u64) -> Option<&'static str> {
        let complaint = if left_ms == 0 { EXPIRED } else { UNANSWERED };
        let is_new = self.complaint != complaint;
        self.complaint = complaint;
        is_new.then_some(complaint)
    }
}

/// Has the cluster drop its items if a scheduled flush is due. Every node tries; one succeeds.
fn flush_if_due(state: &NodeState, membership: &dyn Membership) {
    let due = state.snapshot().flush_due_unix_ms.filter(|due_unix_ms| *due_unix_ms <= unix_ms());
    if let Some(due_unix_ms) = due
        && let Err(error) = membership.flush_as_scheduled(due_unix_ms)
    {
        log::warn!(error:%; "a delayed flush_all failed and is tried again");
    }
}

/// Publishes a new snapshot of the coordinator, once the node's copy of its state is written.
///
/// # Errors
///
/// The reason, if another process has the node's name, or the coordinator has lost the cluster's
/// state: the node's copy of it, from which it can be restored, stays as it is then.
fn publish_snapshot(
    state: &NodeState,
    membership: &dyn Membership,
    me: Peer,
    copy: Option<&mut StateWriter<Arc<Snapshot>>>,
) -> Result<(), &'static str> {
    match membership.snapshot() {
        Ok(snapshot)
            if snapshot.view.incarnation(me.node).is_some_and(|now| now > me.incarnation) =>
        {
            return Err("the lease ended, and another process started under the node's name");
        }
        Ok(snapshot) if snapshot.cluster == 0 && state.snapshot().cluster != 0 => {
            return Err(
                "etcd has lost the cluster's state; restore it by `amalgam cluster restore`",
            );
        }
        Ok(snapshot) if snapshot.cluster != state.snapshot().cluster => {
            return Err("etcd holds another cluster under the name of the node's; if etcd lost \
                        its data and a node founded a new cluster, see `amalgam cluster restore`");
        }
        Ok(snapshot) => {
            let is_new = *snapshot != *state.snapshot();
            let Some((copy, bytes)) = copy.zip(membership.state_copy()) else {
                if is_new {
                    state.publish(snapshot);
                }
                return Ok(());
            };
            if is_new && !copy.is_busy() {
                copy.begin(bytes, snapshot);
            }
            // A disk that stands still for longer is looked at again at the next poll.
            if let Some(kept) = copy.take(COPY_PATIENCE) {
                state.publish(kept);
            }
        }
        // The keep-alive warns about it.
        Err(error) => log::debug!(error:%; "no snapshot"),
    }
    Ok(())
}

/// Submits the proposals that wait and those that have arrived, each once however often the node
/// repeated it. Once `renewal_ms` has come, the rest stay in `waiting`.
fn submit_proposals(
    propose: &mut dyn FnMut(&Proposal) -> Result<(), MembershipError>,
    proposals: &Receiver<Proposal>,
    waiting: &mut VecDeque<Proposal>,
    renewal_ms: u64,
) {
    loop {
        for proposal in proposals.try_iter() {
            if waiting.len() < PROPOSALS_MAX && !waiting.contains(&proposal) {
                waiting.push_back(proposal);
            }
        }
        let Some(proposal) = waiting.pop_front() else { return };
        // After a refusal the node sees the reason in the next view, and proposes anew.
        if let Err(error) = propose(&proposal) {
            log::debug!(error:%; "a proposal was refused");
        }
        if boot_ms() >= renewal_ms {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::ids::NodeId;

    use super::*;
    use crate::membership::Embedded;

    fn member(lease_ms: u64) -> (Embedded, Peer, NodeState) {
        let membership = Embedded::new(1, 2, lease_ms);
        let me = membership.join("one", "host:1", "").expect("there is room").peer;
        let state = NodeState::new(membership.snapshot().expect("it is here")).expect("memory");
        (membership, me, state)
    }

    #[test]
    fn a_loop_that_stands_still_loses_the_lease() {
        // An eighth of it is more than the least time that a loop may stand still.
        const LEASE_MS: u64 = 160_000;
        let (membership, me, state) = member(LEASE_MS);
        let (mut renewal, begin_ms) = (Renewal::default(), boot_ms());
        state.beat(begin_ms);
        assert_eq!(renewal.renew(&state, &membership, me, begin_ms), Ok(()));
        let deadline_ms = state.deadline_ms();
        assert!(deadline_ms > begin_ms, "it turned");
        // On its clock, which the keeper reads, time passes without a turn.
        let mut now_ms = begin_ms;
        let ended = loop {
            now_ms += 100;
            match renewal.renew(&state, &membership, me, now_ms) {
                Ok(()) if now_ms > begin_ms + LEASE_MS / BEAT_PARTS => {
                    assert_eq!(state.deadline_ms(), deadline_ms, "at {now_ms}");
                }
                Ok(()) => {}
                Err(reason) => break reason,
            }
            assert!(now_ms < begin_ms + 2 * LEASE_MS, "the lease was renewed all the time");
        };
        assert!(ended.contains("stood still") && now_ms >= deadline_ms, "{ended}");
        // One that turns again in time keeps it.
        let (mut renewal, begin_ms) = (Renewal::default(), boot_ms());
        state.beat(begin_ms);
        assert_eq!(renewal.renew(&state, &membership, me, begin_ms + LEASE_MS / 2), Ok(()));
        state.beat(begin_ms + LEASE_MS / 2);
        let later_ms = begin_ms + LEASE_MS / 2 + LEASE_MS / 8;
        assert_eq!(renewal.renew(&state, &membership, me, later_ms), Ok(()));
        assert!(state.deadline_ms() > later_ms);
    }

    #[test]
    fn the_end_of_a_lease_is_logged_though_the_coordinator_does_not_answer() {
        let mut renewal = Renewal::default();
        let complaints = [900, 300, 0, 0].map(|left_ms| renewal.complain(left_ms));
        assert_eq!(complaints, [Some(UNANSWERED), None, Some(EXPIRED), None]);
        // It answers, and falls silent again.
        let (membership, me, state) = member(60_000);
        state.beat(boot_ms());
        assert_eq!(renewal.renew(&state, &membership, me, boot_ms()), Ok(()));
        assert_eq!(renewal.complain(900), Some(UNANSWERED));
    }

    /// A super peer may propose more while the coordinator makes one change.
    #[test]
    fn a_renewal_does_not_wait_for_all_proposals() {
        let (sender, proposals) = std::sync::mpsc::channel();
        let promote = |incarnation| {
            Proposal::Promote(Peer { node: NodeId::new(1).expect("a node"), incarnation })
        };
        let (mut waiting, mut asked) = (VecDeque::new(), Vec::new());
        let mut submit = |waiting: &mut _, renewal_ms| {
            let mut propose = |proposal: &Proposal| {
                asked.push(proposal.clone());
                assert!(asked.len() < 1_000, "the lease is never renewed");
                for _ in 0..2 {
                    sender.send(promote(asked.len() as u32)).expect("it is received");
                }
                Ok(())
            };
            submit_proposals(&mut propose, &proposals, waiting, renewal_ms);
            asked.len()
        };
        waiting.push_back(promote(0));
        assert_eq!(submit(&mut waiting, 0), 1, "it is due");
        assert_eq!(submit(&mut waiting, 0), 2);
        assert!(waiting.is_empty(), "the first was repeated: {waiting:?}");
        let (sender, proposals) = std::sync::mpsc::channel();
        (0..1_000).for_each(|number| sender.send(promote(number)).expect("it is received"));
        submit_proposals(&mut |_| Ok(()), &proposals, &mut waiting, 0);
        assert_eq!(waiting.len(), PROPOSALS_MAX - 1, "the others are dropped");
        submit_proposals(&mut |_| Ok(()), &proposals, &mut waiting, u64::MAX);
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_node_leaves_after_its_loop_has_ended() {
        let (membership, me, state) = member(60_000);
        state.set_deadline_ms(boot_ms() + 60_000);
        state.stop();
        let is_member = || membership.snapshot().expect("it is here").view.has(me);
        std::thread::scope(|scope| {
            let leaving = scope.spawn(|| leave(&state, &membership, me));
            while state.deadline_ms() > 0 {
                std::thread::sleep(END_PAUSE);
            }
            assert!(is_member() && !leaving.is_finished(), "it may still answer");
            state.set_loop_ended();
            leaving.join().expect("it leaves");
        });
        assert!(!is_member());
        // A coordinator without an answer would hold up one whose lease is over.
        let (membership, me, state) = member(60_000);
        state.set_loop_ended();
        leave(&state, &membership, me);
        assert!(membership.snapshot().expect("it is here").view.has(me), "its lease ends");
    }

    #[test]
    fn a_node_that_was_voted_out_leaves_once_it_has_stopped() {
        let (membership, me, state) = member(60_000);
        let join = |name| membership.join(name, "host:1", "").expect("there is room").peer;
        let others = ["two", "three"].map(join);
        state.beat(boot_ms());
        state.set_deadline_ms(boot_ms() + 60_000);
        for voter in others {
            membership.propose(&Proposal::VoteOut { voter, member: me }).expect("a member");
        }
        let (_sender, proposals) = std::sync::mpsc::channel();
        let is_member = || membership.snapshot().expect("it is here").view.has(me);
        let (state, membership) = (&state, &membership);
        std::thread::scope(|scope| {
            let keeper = scope.spawn(move || keep_lease(state, membership, me, &proposals, None));
            while state.deadline_ms() > 0 {
                std::thread::sleep(END_PAUSE);
            }
            assert!(state.has_lost_lease() && is_member(), "its loop may still answer");
            state.set_loop_ended();
            keeper.join().expect("it ends");
        });
        assert!(!is_member(), "others wait for its lease");
    }

    #[test]
    fn a_lease_is_kept_while_a_node_reads_its_log() {
        // Longer than any machine holds this up; it is renewed far more often.
        const LEASE_MS: u64 = 60_000;
        const RENEWALS: usize = 5;
        let (membership, me, state) = member(LEASE_MS);
        let (begin_ms, pause) = (boot_ms(), Duration::from_millis(1));
        let count_renewals = |is_enough: &dyn Fn(usize) -> bool| {
            let (mut deadline_ms, mut renewals) = (state.deadline_ms(), 0);
            while !is_enough(renewals) {
                let now_ms = state.deadline_ms();
                renewals += usize::from(now_ms > deadline_ms);
                deadline_ms = now_ms;
                assert!(boot_ms() < begin_ms + LEASE_MS, "{renewals} renewals");
                std::thread::yield_now();
            }
            renewals
        };
        let read = || count_renewals(&|renewals| renewals >= RENEWALS);
        keep_alive_during(&state, &membership, me, pause, read);
        assert!(state.deadline_ms() > begin_ms + LEASE_MS / 2, "it may serve");
        // A disk that stands still.
        state.set_log_busy_since_ms(1);
        let end_ms = boot_ms() + 50;
        let read = || count_renewals(&|_| boot_ms() > end_ms);
        assert_eq!(keep_alive_during(&state, &membership, me, pause, read), 0);
    }
}
