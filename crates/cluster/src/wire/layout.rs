//! What each message looks like on the wire. The order of fields and the codes are the format.

use super::codec::{Reader, Wire, WireError, wire_enum, wire_struct};
use crate::chunks::{
    Action, ChunkError, ClientId, Done, Export, MoveMessage, Operation, Reply, Request,
    SessionExport,
};
use crate::ids::{ChunkId, Creator, IdRange, NodeId};
use crate::overlay::{
    Arc, Change, Edit, Message, Peer, Refusal, RequestId, Seen, Snapshot, Summary, Term, Version,
};
use crate::ranges::{Placement, Range};

/// Everything that nodes and clients send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// About metadata.
    Overlay(Message),
    /// About a move of chunks.
    Move(MoveMessage),
    /// Of a client to the owner of chunks.
    Request(Request),
    /// Its answer.
    Reply(Reply),
}

wire_enum!(Packet { 1 Overlay(message), 2 Move(message), 3 Request(request), 4 Reply(reply) });

/// Numbers with bounds of their own.
macro_rules! wire_checked {
    ($($name:ty: $number:ty, $to:expr, $from:expr;)*) => {$(
        impl Wire for $name {
            const BYTES_MIN: usize = size_of::<$number>();

            fn encode(&self, to: &mut Vec<u8>) {
                let number: $number = $to(*self);
                number.encode(to);
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
                $from(<$number>::decode(from)?).map_err(|_| WireError::Invalid)
            }
        }
    )*};
}

wire_checked! {
    NodeId: u16, NodeId::get, NodeId::new;
    Creator: u16, Creator::get, Creator::new;
    ChunkId: u64, ChunkId::bits, ChunkId::from_bits;
    Placement: u64, Placement::bits, Placement::from_bits;
    ClientId: u64, |client: ClientId| client.0, |number| Ok::<_, WireError>(ClientId(number));
}

impl Wire for IdRange {
    const BYTES_MIN: usize = 16;

    fn encode(&self, to: &mut Vec<u8>) {
        self.first().encode(to);
        self.last().encode(to);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let (first, last) = Wire::decode(from)?;
        Self::new(first, last).map_err(|_| WireError::Invalid)
    }
}

wire_struct!(Range { ids: IdRange, placement: Placement });
wire_struct!(Arc { first: u16, last: u16 });
wire_struct!(Peer { node: NodeId, incarnation: u32 });
wire_struct!(Term { number: u64, leader: Peer });
wire_struct!(Version { term: Term, sequence: u64 });
wire_struct!(RequestId { peer: Peer, sequence: u64 });
wire_struct!(Edit { request: RequestId, ids: IdRange, change: Change });
wire_struct!(Seen { request: RequestId, result: Result<u64, Refusal> });
wire_struct!(Summary { creator: Creator, version: Version, digest: u64 });
wire_struct!(Snapshot { creator: Creator, version: Version, ranges: Vec<Range>, seen: Vec<Seen> });

wire_enum!(Change { 1 Claim(placement), 2 Migrate(placement), 3 Release, 4 Fence });
wire_enum!(Refusal { 1 Owned, 2 NotOwner, 3 Outdated, 4 TooWide });

wire_enum!(Message {
    1 LookUp { origin, token, id, hops },
    2 Found { token, id, epoch, found, is_certain },
    3 Change { edit, hops },
    4 Changed { request, creator, result },
    5 Supers { revision, supers },
    6 Seal { arc, term },
    7 Sealed { arc, term, held },
    8 Overruled { at, promised },
    9 Fetch { creator },
    10 Install { snapshot },
    11 Compare { arc, term, held },
    12 Same { arc, term },
    13 Lacking { term, creators },
    14 Append { creator, version, edits },
    15 Appended { creator, version },
});

wire_struct!(Request {
    client: ClientId,
    incarnation: u32,
    answered_below: u64,
    operations: Vec<Operation>,
});
wire_struct!(Operation { number: u64, epoch: u64, action: Action });
wire_enum!(Action {
    1 Open { lease_ms },
    2 Close,
    3 Create(value),
    4 Get(id),
    5 Put(id, value),
    6 Delete(id),
    7 Lock { id, lease_ms },
    8 Unlock(id),
});
wire_enum!(Done { 1 Ok, 2 Created(id), 3 Value(value), 4 Session });
wire_enum!(ChunkError {
    1 NoChunk,
    2 TooLarge,
    3 Full,
    4 Locked,
    5 NotLocked,
    6 Moved(to),
    7 Outdated,
    8 Retry,
    9 Unavailable,
    10 Restarted(incarnation),
    11 NoSession,
    12 Forgotten,
    13 Busy,
});

wire_enum!(MoveMessage {
    1 Offer { number, ids, since },
    2 Page { number, page, chunks, tail },
    3 Got { number, page },
    4 Declined { number },
    5 Yours { number, ids, epoch },
    6 Mine { number },
    7 Forget { number },
});
wire_struct!(Export { locks: Vec<(ChunkId, ClientId, u64)>, sessions: Vec<SessionExport> });
wire_struct!(SessionExport {
    client: ClientId,
    lease_ms: u64,
    answered_below: u64,
    answers: Vec<(u64, ChunkId, Result<Done, ChunkError>)>,
});
