//! The node of this process, as a client that shares its memory sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use amalgam_cluster::chunks::{Reply, Request};
use amalgam_cluster::overlay::Peer;

use crate::node_state::NodeState;
use crate::own_requests::{OwnReplies, OwnRequest};

/// The way to the event loop of this process.
#[derive(Debug)]
pub(super) struct OwnNode {
    pub(super) peer: Peer,
    state: Arc<NodeState>,
    replies: Arc<OwnReplies>,
    /// The number of operations without a reply.
    in_flight: usize,
}

impl OwnNode {
    /// The way to `peer`, whose event loop has this state.
    pub(super) fn new(peer: Peer, state: Arc<NodeState>) -> io::Result<Self> {
        Ok(Self { peer, state, replies: Arc::new(OwnReplies::new()?), in_flight: 0 })
    }

    /// Readable when there are replies.
    pub(super) fn event(&self) -> &OwnedFd {
        self.replies.event()
    }

    /// Hands over a request, which is not executed after `until_ms`.
    pub(super) fn ask(&mut self, request: Request, until_ms: Option<u64>) {
        self.in_flight += request.operations.len();
        let replies = Arc::clone(&self.replies);
        self.state.request(OwnRequest { request, until_ms, replies });
    }

    /// Takes the replies that have come.
    pub(super) fn take(&mut self) -> Vec<Reply> {
        let replies = self.replies.take();
        let answered: usize = replies.iter().map(Vec::len).sum();
        self.in_flight = self.in_flight.saturating_sub(answered);
        replies
    }

    /// Nothing waits for what was asked so far.
    pub(super) fn forget_asked(&mut self) {
        self.in_flight = 0;
    }

    /// For how long the node has owed a reply and made no progress, in milliseconds.
    pub(super) fn silent_ms(&self, now_ms: u64) -> u64 {
        if self.in_flight > 0 { self.stalled_ms(now_ms) } else { 0 }
    }

    /// How long ago the event loop began its last turn, in milliseconds; it begins none any more
    /// once it has ended.
    pub(super) fn stalled_ms(&self, now_ms: u64) -> u64 {
        if self.state.has_loop_ended() { u64::MAX } else { self.state.since_beat_ms(now_ms) }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::chunks::{Action, ChunkError, ClientId, Operation};
    use amalgam_cluster::ids::NodeId;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::Timespec;

    use super::*;
    use crate::clock::boot_ms;

    /// Whether the descriptor is readable, which it also says to an epoll.
    fn has_event(event: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("it is a descriptor") == 1
    }

    #[test]
    fn requests_and_replies_come_in_order_and_each_side_is_woken_once() {
        let state = Arc::new(NodeState::new(Arc::default()).expect("a descriptor"));
        let peer = Peer { node: NodeId::new(1).expect("a node"), incarnation: 1 };
        let mut own = OwnNode::new(peer, Arc::clone(&state)).expect("a descriptor");
        let request = |first| {
            let action = Action::Create(Vec::new());
            let operations = vec![Operation { number: first, epoch: 0, action }];
            Request { client: ClientId(first), incarnation: 1, answered_below: first, operations }
        };
        let now_ms = boot_ms();
        state.beat(now_ms - 700);
        assert_eq!((own.silent_ms(now_ms), own.stalled_ms(now_ms)), (0, 700), "it owes nothing");
        for turn in 0..3 {
            own.ask(request(turn), None);
            own.ask(request(turn + 10), Some(now_ms + 5));
            assert!(has_event(state.waker()));
            rustix::io::read(state.waker(), &mut [0; 8]).expect("it was woken");
            let asked = state.take_requests();
            let named = asked.iter().map(|one| (one.request.answered_below, one.until_ms));
            let expected = [(turn, None), (turn + 10, Some(now_ms + 5))];
            assert!(named.eq(expected) && state.take_requests().is_empty());
            assert!(!has_event(own.event()) && own.silent_ms(now_ms) == 700);
            for (number, one) in (0..).zip(asked) {
                one.replies.push(vec![(number, Err(ChunkError::Unavailable))]);
            }
            assert!(has_event(own.event()));
            let numbers: Vec<u64> = own.take().iter().map(|reply| reply[0].0).collect();
            assert_eq!((numbers, has_event(own.event())), (vec![0, 1], false));
            assert_eq!(own.silent_ms(now_ms), 0);
        }
    }
}
