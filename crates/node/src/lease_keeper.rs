//! The thread that talks to the coordinator for a node: renews its lease, submits its proposals,
//! and publishes new snapshots.
//!
//! Invariants of this module:
//! 1. The node's deadline is the end of the lease, counted from the moment at which the last
//!    answered keep-alive was *sent*, less a margin for clock drift. So the node stops before the
//!    coordinator can tell other nodes that it is gone.
//! 2. While the coordinator does not answer, the node serves until its deadline and no longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use amalgam_cluster::coordinator::{CoordinatorError, Proposal};
use amalgam_cluster::overlay::Peer;

use crate::clock::boot_ms;
use crate::membership::{Membership, MembershipError};
use crate::node_state::NodeState;

/// A lease is renewed after 1/N of it.
const KEEP_ALIVE_PARTS: u64 = 4;
/// Pause between two tries of a flush that is due, in milliseconds.
const FLUSH_PAUSE_MS: u64 = 500;
/// Clocks may drift apart by 1/N of a lease.
const DRIFT_PARTS: u64 = 100;

/// How long before its end at the coordinator a lease counts as ended here, in milliseconds.
fn margin_ms(lease_ms: u64) -> u64 {
    (lease_ms / 10).min(200) + lease_ms / DRIFT_PARTS
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
                match membership.keep_alive(me) {
                    Ok(()) => state.set_deadline_ms(sent_ms + lease_ms - margin_ms(lease_ms)),
                    // The lease keeper that starts next finds out whether the lease has ended.
                    Err(error) => log::debug!(error:%; "the lease was not renewed"),
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
) {
    let lease_ms = membership.lease_ms();
    let poll = Duration::from_millis(membership.poll_ms());
    let mut next_keep_alive_ms = 0;
    let mut has_warned = false;
    while !state.is_stopping() {
        let sent_ms = boot_ms();
        if sent_ms >= next_keep_alive_ms {
            match membership.keep_alive(me) {
                Ok(()) => {
                    state.set_deadline_ms(sent_ms + lease_ms - margin_ms(lease_ms));
                    next_keep_alive_ms = sent_ms + lease_ms / KEEP_ALIVE_PARTS;
                    has_warned = false;
                }
                Err(MembershipError::Refused(CoordinatorError::NoMember)) => {
                    log::error!(node = me.node.get(); "the lease ended: the node stops");
                    state.set_deadline_ms(0);
                    state.stop();
                    return;
                }
                Err(error) => {
                    if !has_warned {
                        let left_ms = state.deadline_ms().saturating_sub(boot_ms());
                        log::warn!(
                            error:%, left_ms;
                            "the coordinator does not answer; the node serves until its lease ends"
                        );
                    }
                    has_warned = true;
                    next_keep_alive_ms = sent_ms + lease_ms / (4 * KEEP_ALIVE_PARTS);
                }
            }
        }
        if state.take_due_flush(sent_ms)
            && let Err(error) = membership.flush()
        {
            log::warn!(error:%; "a delayed flush_all failed and is tried again");
            // It may have been counted all the same: two flushes are better than none.
            state.retry_flush_at_ms(sent_ms + FLUSH_PAUSE_MS);
        }
        match membership.snapshot() {
            // Another process started under this node's name.
            Ok(snapshot)
                if snapshot.view.incarnation(me.node).is_some_and(|now| now > me.incarnation) =>
            {
                log::error!(
                    node = me.node.get();
                    "another process started under this node's name: this one stops"
                );
                state.set_deadline_ms(0);
                state.stop();
                return;
            }
            Ok(snapshot) if *snapshot != *state.snapshot() => state.publish(snapshot),
            Ok(_) => {}
            // The keep-alive warns about it.
            Err(error) => log::debug!(error:%; "no snapshot"),
        }
        submit_proposals(membership, proposals, poll);
    }
    if let Err(error) = membership.leave(me) {
        log::info!(error:%; "the node could not leave the cluster; its lease will end");
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
