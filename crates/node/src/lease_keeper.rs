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

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use amalgam_cluster::coordinator::{CoordinatorError, Proposal};
use amalgam_cluster::overlay::Peer;

use crate::clock::{boot_ms, unix_ms};
use crate::membership::{Membership, MembershipError};
use crate::node_state::NodeState;
use crate::state_file::StateFile;

/// A lease is renewed after 1/N of it.
const KEEP_ALIVE_PARTS: u64 = 4;
/// The event loop must have turned, and the log's thread have completed what it does, within the
/// last 1/N of the lease for the lease to be renewed, or within [`BEAT_MS_MIN`] if that is longer;
/// after half of 1/N the keeper looks again.
const BEAT_PARTS: u64 = 8;
/// A sound loop on a busy machine may take seconds for one turn, as after the restart of a whole
/// cluster, when it takes up what its log held.
const BEAT_MS_MIN: u64 = 10_000;
/// The target of what a node logs last, which no limit of the log's rate leaves out.
pub const FINAL_TARGET: &str = "amalgam::end";
/// Why a node stops that the coordinator no longer has as a member.
const LEASE_ENDED: &str = "the lease ended";
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

/// Runs `act`, which may take longer than the lease of a node that does not serve yet, and renews
/// the lease meanwhile.
pub fn keep_alive_during<T>(
    state: &NodeState,
    membership: &dyn Membership,
    me: Peer,
    act: impl FnOnce() -> T,
) -> T {
    let lease_ms = membership.lease_ms();
    let pause = Duration::from_millis(lease_ms / KEEP_ALIVE_PARTS);
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
    mut copy: Option<StateFile>,
) {
    let poll = Duration::from_millis(membership.poll_ms());
    let mut renewal = Renewal::default();
    while !state.is_stopping() {
        let now_ms = boot_ms();
        let is_kept = renewal.renew(state, membership, me, now_ms).and_then(|()| {
            flush_if_due(state, membership);
            publish_snapshot(state, membership, me, copy.as_mut())
        });
        if let Err(reason) = is_kept {
            log::error!(target: FINAL_TARGET, node = me.node.get(); "{reason}: the node stops");
            state.set_deadline_ms(0);
            match reason {
                LEASE_ENDED => state.stop_without_lease(),
                _ => state.stop(),
            }
            return;
        }
        submit_proposals(membership, proposals, poll);
    }
    leave(state, membership, me);
}

/// Leaves the cluster once the event loop has ended. If it does not end, the lease will.
fn leave(state: &NodeState, membership: &dyn Membership, me: Peer) {
    let until_ms = state.deadline_ms();
    // The gateway turns its clients away.
    state.set_deadline_ms(0);
    while !state.has_loop_ended() {
        if boot_ms() >= until_ms {
            return;
        }
        std::thread::sleep(END_PAUSE);
    }
    if let Err(error) = membership.leave(me) {
        log::info!(error:%; "the node could not leave the cluster; its lease will end");
    }
}

/// When a lease is renewed, and what was logged about it.
#[derive(Debug, Default)]
struct Renewal {
    next_ms: u64,
    has_warned: bool,
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
                self.has_warned = false;
            }
            Err(MembershipError::Refused(CoordinatorError::NoMember)) => {
                return Err(LEASE_ENDED);
            }
            Err(error) => {
                if !self.has_warned {
                    let left_ms = state.deadline_ms().saturating_sub(boot_ms());
                    log::warn!(
                        error:%, left_ms;
                        "the coordinator does not answer; the node serves until its lease ends"
                    );
                }
                self.has_warned = true;
                self.next_ms = sent_ms + lease_ms / (4 * KEEP_ALIVE_PARTS);
            }
        }
        Ok(())
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

/// Publishes a new snapshot of the coordinator.
///
/// # Errors
///
/// The reason, if another process has the node's name, or the coordinator has lost the cluster's
/// state: the node's copy of it, from which it can be restored, stays as it is then.
fn publish_snapshot(
    state: &NodeState,
    membership: &dyn Membership,
    me: Peer,
    copy: Option<&mut StateFile>,
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
        Ok(snapshot) if *snapshot != *state.snapshot() => {
            save_state(membership, copy);
            state.publish(snapshot);
        }
        Ok(_) => {}
        // The keep-alive warns about it.
        Err(error) => log::debug!(error:%; "no snapshot"),
    }
    Ok(())
}

/// Keeps a copy of the coordinator's state, if the node has a folder for it.
pub fn save_state(membership: &dyn Membership, copy: Option<&mut StateFile>) {
    if let Some((copy, state)) = copy.zip(membership.state_copy())
        && let Err(error) = copy.write(&state)
    {
        log::error!(
            error:%;
            "no copy of the cluster's state was kept: without one from each node, a cluster whose \
             etcd lost its data may not be restored"
        );
    }
}

/// Submits the proposals of the node that arrive within `poll`.
fn submit_proposals(membership: &dyn Membership, proposals: &Receiver<Proposal>, poll: Duration) {
    let mut wait = poll;
    loop {
        match proposals.recv_timeout(wait) {
            Ok(proposal) => {
                // After a refusal the node sees the reason in the next view, and proposes anew.
                if let Err(error) = membership.propose(&proposal) {
                    log::debug!(error:%; "a proposal was refused");
                }
                wait = Duration::ZERO;
            }
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => return std::thread::sleep(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
    }

    #[test]
    fn a_lease_is_kept_while_a_node_reads_its_log() {
        const LEASE_MS: u64 = 200;
        let membership = Embedded::new(1, 2, LEASE_MS);
        let me = membership.join("one", "host:1", "").expect("there is room").peer;
        let state = NodeState::new(membership.snapshot().expect("it is here")).expect("memory");
        let state = Arc::new(state);
        let read = || std::thread::sleep(Duration::from_millis(4 * LEASE_MS));
        keep_alive_during(&state, &membership, me, read);
        assert!(state.deadline_ms() > boot_ms(), "it may serve");
        assert_eq!(membership.keep_alive(me).err().map(|error| error.to_string()), None);
        read();
        membership.keep_alive(me).expect_err("nobody kept it");
    }
}
