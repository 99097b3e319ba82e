//! Members, their friends and resources, as objects with numbers.
//!
//! A value begins with its object's number, its version and a sum over all of it, so that a read
//! that shows another object, an old version or a torn value is told apart.

use amalgam_bench::ensure_usage;
use std::sync::atomic::{AtomicU32, Ordering};

use amalgam_bench::workload::mix64;

/// The number of friends of a member at first.
pub const FRIENDS: u32 = 100;
/// The number of resources of a member at first.
pub const RESOURCES: u32 = 100;
/// Bytes of a profile, and of a resource with the comments on it.
const PROFILE_BYTES: usize = 512;
const RESOURCE_BYTES: usize = 256;
/// The length of the number, the version and the checksum at the start of a value.
const HEAD_BYTES: usize = 16;
/// The offset of the sum, which covers the number, the version and the body.
const SUM_AT: usize = 8;

/// The kinds of object of which each member has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The member's profile, with the numbers of its friends and invitations.
    Profile,
    /// The list of its friends.
    Friends,
    /// The list of the members that invited it.
    Invitations,
    /// The list of its resources.
    Resources,
}

const KINDS: u32 = 4;

/// All objects, and which of their versions a read may show.
pub struct World {
    /// The number of members.
    pub members: u32,
    /// Members `n * share..` to the next multiple are written by client `n` alone, and are friends
    /// of each other only.
    pub share: u32,
    sent: Vec<AtomicU32>,
    answered: Vec<AtomicU32>,
}

impl World {
    /// A world whose members are written by `clients` clients.
    ///
    /// # Errors
    ///
    /// If a client's share of them is too small for their friends.
    pub fn new(members: u32, clients: u32) -> anyhow::Result<Self> {
        ensure_usage!(
            clients > 0 && members / clients > FRIENDS,
            "too few profiles for the clients"
        );
        ensure_usage!(members <= 1_000_000, "too many profiles");
        let versions = || (0..members * KINDS).map(|_| AtomicU32::new(0)).collect();
        let (sent, answered) = (versions(), versions());
        Ok(Self { members, share: members / clients, sent, answered })
    }

    /// The number of objects.
    pub fn objects(&self) -> u32 {
        self.members * (KINDS + RESOURCES)
    }

    /// The approximate bytes of all objects with their keys.
    pub fn bytes(&self) -> u64 {
        let one = PROFILE_BYTES as u32 + 4 * (FRIENDS + RESOURCES);
        u64::from(self.members) * u64::from(one + RESOURCES * (RESOURCE_BYTES as u32 + 64))
    }

    /// A member's own object.
    pub fn of(&self, member: u32, kind: Kind) -> u32 {
        member * KINDS + kind as u32
    }

    /// A resource, by its number among all.
    pub fn resource(&self, resource: u32) -> u32 {
        self.members * KINDS + resource
    }

    /// The member that an object belongs to.
    pub fn member_of(&self, number: u32) -> u32 {
        match number.checked_sub(self.members * KINDS) {
            None => number / KINDS,
            Some(rest) => rest / RESOURCES,
        }
    }

    /// The client that writes a member.
    pub fn writer(&self, member: u32) -> u32 {
        (member / self.share).min(self.members / self.share - 1)
    }

    /// The members that a client writes.
    pub fn written_by(&self, client: u32) -> std::ops::Range<u32> {
        let first = client * self.share;
        let is_last = client + 1 == self.members / self.share;
        first..if is_last { self.members } else { first + self.share }
    }

    /// The friends of a member at first: its neighbours among those with the same writer.
    pub fn first_friends(&self, member: u32) -> Vec<u32> {
        let own = self.written_by(self.writer(member));
        let (place, length) = (member - own.start, own.len() as u32);
        let near = (1..=FRIENDS / 2).flat_map(|step| [step, length - step]);
        near.map(|step| own.start + (place + step) % length).collect()
    }

    /// The first version of an object.
    pub fn first_value(&self, number: u32) -> Vec<u8> {
        let member = self.member_of(number);
        let body = if number >= self.members * KINDS {
            filler(number, 0, RESOURCE_BYTES)
        } else {
            match number % KINDS {
                0 => profile(number, 0, FRIENDS, 0),
                1 => list(&self.first_friends(member)),
                2 => Vec::new(),
                _ => {
                    let first = member * RESOURCES;
                    list(&(first..first + RESOURCES).collect::<Vec<_>>())
                }
            }
        };
        sealed(number, 0, &body)
    }

    /// Begins the next version of an object, which reads may show from now on. Requires: the caller
    /// is the object's writer.
    pub fn next_version(&self, number: u32) -> u32 {
        let version = self.sent[number as usize].load(Ordering::Relaxed) + 1;
        self.sent[number as usize].store(version, Ordering::SeqCst);
        version
    }

    /// Records that the newest version was acknowledged.
    pub fn is_answered(&self, number: u32) {
        let version = self.sent[number as usize].load(Ordering::Relaxed);
        self.answered[number as usize].store(version, Ordering::SeqCst);
    }

    /// The oldest version that a read which begins now may show.
    pub fn least(&self, number: u32) -> u32 {
        self.answered.get(number as usize).map_or(0, |version| version.load(Ordering::SeqCst))
    }

    /// Whether a read that began with `least` may show `value`.
    pub fn allows(&self, number: u32, least: u32, value: &[u8]) -> bool {
        let most = self.sent.get(number as usize).map_or(0, |sent| sent.load(Ordering::SeqCst));
        let Some((head, body)) = value.split_at_checked(HEAD_BYTES) else { return false };
        let version = word(head, 4);
        let is_it = word(head, 0) == number && (least..=most).contains(&version);
        is_it && head[SUM_AT..] == sum(number, version, body).to_le_bytes()
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn sum(number: u32, version: u32, body: &[u8]) -> u64 {
    let start = mix64(u64::from(number) << 32 | u64::from(version)) ^ body.len() as u64;
    body.chunks(8).fold(start, |sum, part| {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        (sum ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// A value as it is stored.
pub fn sealed(number: u32, version: u32, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD_BYTES + body.len());
    value.extend(number.to_le_bytes());
    value.extend(version.to_le_bytes());
    value.extend(sum(number, version, body).to_le_bytes());
    value.extend(body);
    value
}

fn filler(number: u32, from: usize, bytes: usize) -> Vec<u8> {
    (from..bytes).map(|place| (number as usize + place) as u8).collect()
}

/// A profile that counts friends and invitations.
pub fn profile(number: u32, version: u32, friends: u32, invitations: u32) -> Vec<u8> {
    let mut body = list(&[friends, invitations, RESOURCES, version]);
    body.extend(filler(number, body.len(), PROFILE_BYTES));
    body
}

/// The body of a value that holds a list of numbers.
pub fn list(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The list that a value holds.
pub fn numbers_in(value: &[u8]) -> Vec<u32> {
    value.get(HEAD_BYTES..).unwrap_or_default().chunks_exact(4).map(|one| word(one, 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_numbers_of_their_own_and_friends_are_mutual() {
        let world = World::new(450, 3).expect("enough");
        let mut seen = vec![false; world.objects() as usize];
        let kinds = [Kind::Profile, Kind::Friends, Kind::Invitations, Kind::Resources];
        for member in 0..450 {
            let own = kinds.map(|kind| world.of(member, kind));
            let first = member * RESOURCES;
            let shown = (first..first + RESOURCES).map(|resource| world.resource(resource));
            for number in own.into_iter().chain(shown) {
                assert_eq!(world.member_of(number), member);
                assert!(!std::mem::replace(&mut seen[number as usize], true));
            }
            let friends = world.first_friends(member);
            assert_eq!(friends.len(), FRIENDS as usize);
            for friend in friends {
                assert_eq!(world.writer(friend), world.writer(member));
                assert!(friend != member && world.first_friends(friend).contains(&member));
            }
        }
        assert!(seen.into_iter().all(|is| is));
    }

    #[test]
    fn a_read_may_show_what_overlaps_it_and_nothing_else() {
        let world = World::new(300, 2).expect("enough");
        let number = world.of(7, Kind::Friends);
        let first = world.first_value(number);
        assert_eq!(numbers_in(&first), world.first_friends(7));
        let least = world.least(number);
        assert!(world.allows(number, least, &first));
        let second = sealed(number, 1, &list(&[1, 2, 3]));
        assert!(!world.allows(number, least, &second), "nobody wrote it");
        assert_eq!(world.next_version(number), 1);
        assert!(world.allows(number, least, &first) && world.allows(number, least, &second));
        world.is_answered(number);
        let later = world.least(number);
        assert!(!world.allows(number, later, &first), "it was replaced before the read");
        assert!(world.allows(number, later, &second));
        let mut torn = second.clone();
        torn[HEAD_BYTES] ^= 1;
        assert!(!world.allows(number, later, &torn) && !world.allows(number, later, &[]));
        let other = world.of(8, Kind::Friends);
        assert!(!world.allows(other, 0, &second), "another object's");
    }
}
