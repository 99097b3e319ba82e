//! Admission of connections: how many that have not proved the join token may be open, in all and
//! from one address, and how many descriptors are left for everything else.
//!
//! Invariants of this module:
//! 1. At most [`UNAUTHENTICATED_MAX`] accepted connections are unauthenticated, and at most
//!    [`PER_ADDRESS_MAX`] of those are from one address. The oldest one makes room: a handshake
//!    takes a round trip, so an honest peer is rarely the oldest.
//! 2. No accepted connection keeps one of the last [`RESERVED_FILES`] descriptors: those are for
//!    the coordinator, the log and connections to other nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use rustix::process::{Resource, getrlimit};

/// Unauthenticated connections that may be open in all.
pub const UNAUTHENTICATED_MAX: usize = 512;
/// Unauthenticated connections that may be open from one address.
pub const PER_ADDRESS_MAX: usize = 64;
/// Descriptors that no accepted connection may take.
pub const RESERVED_FILES: u64 = 64;
/// Time limit of the handshake of an accepted connection, in milliseconds.
pub const AUTHENTICATION_MS: u64 = 5_000;
/// Time limit of the handshake of a connection that this node dialed, in milliseconds. The system
/// repeats what is lost after longer and longer pauses, so that a node that can be reached again is
/// reached sooner by another attempt.
pub const DIAL_MS: u64 = 2_000;

/// The unauthenticated connections of an event loop, by their numbers, which ascend.
#[derive(Debug, Default)]
pub struct Admission {
    /// When each began, in [`crate::clock::boot_ms`], and from where; None if this node dialed.
    waiting: BTreeMap<u64, (u64, Option<IpAddr>)>,
    /// The accepted ones of each address. No set is empty.
    by_address: BTreeMap<IpAddr, BTreeSet<u64>>,
    /// Number of accepted ones.
    accepted: usize,
}

impl Admission {
    /// Adds a connection. Returns the one to close for it, if there are too many.
    pub fn insert(&mut self, number: u64, from: Option<IpAddr>, now_ms: u64) -> Option<u64> {
        let from = from.map(network);
        self.waiting.insert(number, (now_ms, from));
        let own = self.by_address.entry(from?).or_default();
        own.insert(number);
        self.accepted += 1;
        if own.len() > PER_ADDRESS_MAX {
            return own.first().copied();
        }
        if self.accepted <= UNAUTHENTICATED_MAX { None } else { self.oldest_of_most() }
    }

    /// The oldest accepted connection of the address that has most, and of several such addresses
    /// the oldest of all; None if there is none.
    pub fn oldest_of_most(&self) -> Option<u64> {
        let order = |own: &&BTreeSet<u64>| (own.len(), Reverse(own.first().copied()));
        self.by_address.values().max_by_key(order)?.first().copied()
    }

    /// Forgets a connection that is authenticated or closed.
    pub fn remove(&mut self, number: u64) {
        let Some((_, Some(from))) = self.waiting.remove(&number) else { return };
        self.accepted -= 1;
        if let Some(own) = self.by_address.get_mut(&from) {
            own.remove(&number);
            if own.is_empty() {
                self.by_address.remove(&from);
            }
        }
    }

    /// The connections whose handshake has taken too long.
    pub fn late(&self, now_ms: u64) -> Vec<u64> {
        let is_late = |(_, (since_ms, from)): &(&u64, &(u64, Option<IpAddr>))| {
            now_ms >= since_ms + if from.is_none() { DIAL_MS } else { AUTHENTICATION_MS }
        };
        self.waiting.iter().filter(is_late).map(|(number, _)| *number).collect()
    }
}

/// What counts as one address: of IPv6 the first 64 bits, since a host has all of the rest.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        canonical => canonical,
    }
}

/// Whether a descriptor is one that no accepted connection may take. The system hands out the
/// lowest number that is free.
pub fn is_reserved(descriptor: i32) -> bool {
    let limit = getrlimit(Resource::Nofile).current;
    limit.is_some_and(|limit| u64::from(descriptor.unsigned_abs()) + RESERVED_FILES >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn the_oldest_of_an_address_makes_room() {
        let mut admission = Admission::default();
        let full = PER_ADDRESS_MAX as u64;
        assert!((0..full).all(|number| admission.insert(number, host(1), 0).is_none()));
        assert_eq!(admission.insert(full, host(2), 0), None, "another address");
        assert_eq!(admission.insert(full + 1, host(1), 0), Some(0));
        admission.remove(0);
        admission.remove(1);
        assert_eq!(admission.insert(full + 2, host(1), 0), None, "one was authenticated");
    }

    #[test]
    fn of_many_addresses_the_greediest_makes_room() {
        let mut admission = Admission::default();
        let mut number = 0;
        let mut add = |admission: &mut Admission, host| {
            number += 1;
            admission.insert(number, host, 0)
        };
        assert_eq!(add(&mut admission, host(1)), None);
        assert_eq!(add(&mut admission, None), None, "a dialed one is not bounded");
        for other in 2..10 {
            let own = (UNAUTHENTICATED_MAX - 1).div_ceil(8).min(PER_ADDRESS_MAX);
            for _ in 0..own {
                if let Some(closed) = add(&mut admission, host(other)) {
                    assert_ne!(closed, 1, "the address with one connection keeps it");
                    admission.remove(closed);
                }
            }
        }
        assert_eq!(admission.accepted, UNAUTHENTICATED_MAX);
        assert!(add(&mut admission, host(77)).is_some_and(|closed| closed > 2));
    }

    #[test]
    fn of_addresses_with_one_connection_the_oldest_makes_room() {
        let mut admission = Admission::default();
        let address = |number: u64| Some(IpAddr::from([10, 1, (number >> 8) as u8, number as u8]));
        let full = UNAUTHENTICATED_MAX as u64;
        assert!((0..full).all(|number| admission.insert(number, address(number), 0).is_none()));
        assert_eq!(admission.insert(full, address(full), 0), Some(0), "the newest stays");
    }

    #[test]
    fn a_handshake_has_a_deadline() {
        let mut admission = Admission::default();
        admission.insert(1, host(1), 100);
        admission.insert(2, None, 200);
        assert_eq!(admission.late(199 + DIAL_MS), [0_u64; 0]);
        assert_eq!(admission.late(200 + DIAL_MS), [2], "a node is dialed anew");
        assert_eq!(admission.late(100 + AUTHENTICATION_MS), [1, 2]);
    }

    #[test]
    fn networks_of_ipv6_count_as_one_address() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
