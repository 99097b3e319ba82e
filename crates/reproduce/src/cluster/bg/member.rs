//! A client of the social network: BG's actions on members and resources.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::stores::Store;
use super::world::{Kind, RESOURCES, World, list, numbers_in, profile, sealed};
use amalgam_bench::measure::{RunQueue, Timing};
use amalgam_bench::workload::{Permutation, Popularity};

/// The skew of the zipfian distribution by which members are chosen.
const THETA: f64 = 0.27;
/// The number of resources that a page shows.
const TOP: usize = 5;

/// The percentage of actions that write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
pub enum Mix {
    /// One of a thousand.
    #[value(name = "0.1")]
    #[serde(rename = "0.1")]
    Tenth,
    /// One of a hundred.
    #[value(name = "1")]
    #[serde(rename = "1")]
    One,
    /// One of ten.
    #[value(name = "10")]
    #[serde(rename = "10")]
    Ten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BgAction {
    ViewProfile,
    ListFriends,
    ViewInvitations,
    ViewTop,
    ViewComments,
    Invite,
    Accept,
    Reject,
    Thaw,
}

impl Mix {
    /// The share of each action in ten thousand, as BG defines its mixes.
    fn parts(self) -> [(BgAction, u32); 9] {
        use BgAction::{
            Accept, Invite, ListFriends, Reject, Thaw, ViewComments, ViewInvitations, ViewProfile,
            ViewTop,
        };
        let actions = [
            ViewProfile,
            ListFriends,
            ViewInvitations,
            ViewTop,
            ViewComments,
            Invite,
            Accept,
            Reject,
            Thaw,
        ];
        let parts = match self {
            Self::Tenth => [4_000, 500, 500, 4_000, 990, 4, 2, 2, 2],
            Self::One => [4_000, 500, 500, 4_000, 900, 40, 20, 20, 20],
            Self::Ten => [3_500, 500, 500, 3_500, 1_000, 400, 200, 200, 200],
        };
        std::array::from_fn(|index| (actions[index], parts[index]))
    }

    fn draw(self, random: &mut SmallRng) -> BgAction {
        let mut left = random.random_range(0..10_000);
        for (action, part) in self.parts() {
            if left < part {
                return action;
            }
            left -= part;
        }
        BgAction::ViewProfile
    }
}

/// The results of a client.
#[derive(Default)]
pub struct Tally {
    /// The number of actions and their times.
    pub timing: Timing,
    /// The times from when each action was due, where actions are scheduled.
    pub since_due: Timing,
    /// The times of `timing` without the time that the client's thread waited for its core.
    pub on_core: Timing,
    /// Values read that the writes which overlap the read do not allow.
    pub unpredictable: u64,
    /// Actions that write.
    pub writes: u64,
}

/// A client: it writes the members of its share, and reads those of all.
pub struct Client<'w> {
    world: &'w World,
    store: Box<dyn Store>,
    random: SmallRng,
    popularity: Popularity,
    scatter: Permutation,
    mix: Mix,
    first: u32,
    /// The friends of each member that this client writes, by the member's offset in its share.
    friends: Vec<Vec<u32>>,
    invitations: Vec<Vec<u32>>,
    unpredictable: u64,
    writes: u64,
}

impl<'w> Client<'w> {
    /// Client `number` of the clients that the world was made for.
    ///
    /// # Errors
    ///
    /// If the popularity has an invalid parameter, which [`World::new`] rules out.
    pub fn new(
        world: &'w World,
        number: u32,
        mix: Mix,
        store: Box<dyn Store>,
    ) -> anyhow::Result<Self> {
        let own = world.written_by(number);
        Ok(Self {
            world,
            store,
            random: SmallRng::seed_from_u64(u64::from(number) + 1),
            popularity: Popularity::new(u64::from(world.members), THETA)?,
            scatter: Permutation::new(u64::from(world.members), 1),
            mix,
            first: own.start,
            friends: own.clone().map(|member| world.first_friends(member)).collect(),
            invitations: vec![Vec::new(); own.len()],
            unpredictable: 0,
            writes: 0,
        })
    }

    /// Acts for `seconds`; one action each `interval`, or one after the other.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub fn act_for(&mut self, seconds: f64, interval: Option<Duration>) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        (self.unpredictable, self.writes) = (0, 0);
        let queue = RunQueue::of_this_thread()?;
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut due = Instant::now();
        tally.timing.start();
        while Instant::now() < end {
            let Some(interval) = interval else {
                self.act()?;
                tally.timing.lap(1);
                continue;
            };
            due += interval;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (before_ns, began) = (queue.waited_ns()?, Instant::now());
            tally.timing.start();
            self.act()?;
            tally.timing.lap(1);
            tally.since_due.start_at(due);
            tally.since_due.lap(1);
            let waited = Duration::from_nanos(queue.waited_ns()?.saturating_sub(before_ns));
            tally.on_core.start_at(began + waited);
            tally.on_core.lap(1);
        }
        (tally.unpredictable, tally.writes) = (self.unpredictable, self.writes);
        Ok(tally)
    }

    fn act(&mut self) -> anyhow::Result<()> {
        let action = self.mix.draw(&mut self.random);
        let member = self.scatter.apply(self.popularity.draw(&mut self.random)) as u32;
        match action {
            BgAction::ViewProfile => self.view(member, Kind::Profile).map(drop),
            BgAction::ListFriends => self.view_profiles_in(member, Kind::Friends),
            BgAction::ViewInvitations => self.view_profiles_in(member, Kind::Invitations),
            BgAction::ViewTop => {
                let mut top = numbers_in(&self.view(member, Kind::Resources)?);
                top.truncate(TOP);
                let numbers: Vec<u32> =
                    top.into_iter().map(|resource| self.world.resource(resource)).collect();
                self.read(&numbers).map(drop)
            }
            BgAction::ViewComments => {
                let resource = member * RESOURCES + self.random.random_range(0..RESOURCES);
                self.read(&[self.world.resource(resource)]).map(drop)
            }
            BgAction::Invite | BgAction::Accept | BgAction::Reject | BgAction::Thaw => {
                self.writes += 1;
                self.change(action, member)
            }
        }
    }

    /// Reads objects together, and counts the values that are unpredictable.
    fn read(&mut self, numbers: &[u32]) -> anyhow::Result<Vec<Vec<u8>>> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let least: Vec<u32> = numbers.iter().map(|number| self.world.least(*number)).collect();
        let values = self.store.read(numbers)?;
        ensure!(values.len() == numbers.len(), "not as many values as were asked for");
        for ((number, least), value) in numbers.iter().zip(least).zip(&values) {
            self.unpredictable += u64::from(!self.world.allows(*number, least, value));
        }
        Ok(values)
    }

    fn view(&mut self, member: u32, kind: Kind) -> anyhow::Result<Vec<u8>> {
        Ok(self.read(&[self.world.of(member, kind)])?.remove(0))
    }

    fn view_profiles_in(&mut self, member: u32, kind: Kind) -> anyhow::Result<()> {
        let others = numbers_in(&self.view(member, kind)?);
        // A number that is not a member was counted as unpredictable.
        let others = others.into_iter().filter(|other| *other < self.world.members);
        let numbers: Vec<u32> = others.map(|other| self.world.of(other, Kind::Profile)).collect();
        self.read(&numbers).map(drop)
    }

    /// An action that writes: on a member of this client, near the one that was drawn.
    fn change(&mut self, action: BgAction, drawn: u32) -> anyhow::Result<()> {
        let count = self.friends.len() as u32;
        let place = drawn % count;
        let member = self.first + place;
        let (own, inviter) = (place as usize, self.invitations[place as usize].first().copied());
        match (action, inviter) {
            (BgAction::Accept, Some(inviter)) => {
                let other = (inviter - self.first) as usize;
                self.update(&[member, inviter], &[Kind::Friends, Kind::Invitations], |client| {
                    client.invitations[own].remove(0);
                    client.friends[own].push(inviter);
                    client.friends[other].push(member);
                })
            }
            (BgAction::Reject, Some(_)) => self.update(&[member], &[Kind::Invitations], |client| {
                client.invitations[own].remove(0);
            }),
            (BgAction::Thaw, _) if !self.friends[own].is_empty() => {
                let at = self.random.random_range(0..self.friends[own].len());
                let friend = self.friends[own][at];
                let other = (friend - self.first) as usize;
                self.update(&[member, friend], &[Kind::Friends], |client| {
                    client.friends[own].remove(at);
                    client.friends[other].retain(|one| *one != member);
                })
            }
            // Without an invitation there is nothing to accept or reject: one is sent.
            _ => {
                let other = self.first + self.random.random_range(0..count);
                let is_new = other != member
                    && !self.friends[own].contains(&other)
                    && !self.invitations[own].contains(&other)
                    && !self.invitations[(other - self.first) as usize].contains(&member);
                if !is_new {
                    return Ok(());
                }
                self.update(&[member], &[Kind::Invitations], |client| {
                    client.invitations[own].push(other);
                })
            }
        }
    }

    /// Reads the profiles of members and some of their lists, checks that the lists are what this
    /// client wrote last, and writes what `edit` makes of them.
    fn update(
        &mut self,
        members: &[u32],
        kinds: &[Kind],
        edit: impl FnOnce(&mut Self),
    ) -> anyhow::Result<()> {
        let objects: Vec<(u32, Kind)> = members
            .iter()
            .flat_map(|member| {
                let lists = kinds.iter().map(|kind| (*member, *kind));
                lists.chain([(*member, Kind::Profile)])
            })
            .collect();
        let numbers: Vec<u32> =
            objects.iter().map(|(member, kind)| self.world.of(*member, *kind)).collect();
        let values = self.read(&numbers)?;
        for ((member, kind), value) in objects.iter().zip(&values) {
            let is_known = self.list(*member, *kind).is_none_or(|list| *list == numbers_in(value));
            self.unpredictable += u64::from(!is_known);
        }
        edit(self);
        let mut changed = Vec::with_capacity(objects.len());
        for ((member, kind), number) in objects.iter().zip(&numbers) {
            let version = self.world.next_version(*number);
            let body = match self.list(*member, *kind) {
                Some(numbers) => list(numbers),
                None => {
                    let place = (member - self.first) as usize;
                    let friends = self.friends[place].len() as u32;
                    profile(*number, version, friends, self.invitations[place].len() as u32)
                }
            };
            changed.push((*number, sealed(*number, version, &body)));
        }
        self.store.write(changed)?;
        numbers.iter().for_each(|number| self.world.is_answered(*number));
        Ok(())
    }

    fn list(&self, member: u32, kind: Kind) -> Option<&Vec<u32>> {
        let place = (member - self.first) as usize;
        match kind {
            Kind::Friends => Some(&self.friends[place]),
            Kind::Invitations => Some(&self.invitations[place]),
            Kind::Profile | Kind::Resources => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use super::super::stores::{Request, Values};
    use super::*;

    /// A map that loses every `forgets`th write.
    struct Map {
        values: Arc<Mutex<BTreeMap<u32, Vec<u8>>>>,
        forgets: u32,
        writes: u32,
    }

    impl Store for Map {
        fn execute(&mut self, requests: Vec<Request>) -> anyhow::Result<Vec<Values>> {
            let mut all = self.values.lock().expect("no panic");
            let mut execute = |request| match request {
                Request::Read(numbers) => {
                    numbers.iter().map(|number| all[number].clone()).collect()
                }
                Request::Write(objects) => {
                    self.writes += 1;
                    if self.forgets == 0 || !self.writes.is_multiple_of(self.forgets) {
                        all.extend(objects);
                    }
                    Vec::new()
                }
            };
            Ok(requests.into_iter().map(&mut execute).collect())
        }
    }

    fn unpredictable(forgets: u32) -> (u64, u64) {
        let world = World::new(240, 2).expect("enough");
        let first = |number| (number, world.first_value(number));
        let values: BTreeMap<u32, Vec<u8>> = (0..world.objects()).map(first).collect();
        let values = Arc::new(Mutex::new(values));
        let (mut found, mut writes) = (0, 0);
        for number in 0..2 {
            let store = Box::new(Map { values: Arc::clone(&values), forgets, writes: 0 });
            let mut client = Client::new(&world, number, Mix::Ten, store).expect("a client");
            for _ in 0..2_000 {
                client.act().expect("it acts");
            }
            found += client.unpredictable;
            writes += client.writes;
        }
        (found, writes)
    }

    #[test]
    fn lost_writes_are_found_and_nothing_else_is() {
        let (found, writes) = unpredictable(0);
        assert_eq!(found, 0);
        assert!((250..600).contains(&writes), "{writes}");
        assert!(unpredictable(20).0 > 0, "one of twenty writes is lost");
    }

    #[test]
    fn mixes_are_whole() {
        for mix in [Mix::Tenth, Mix::One, Mix::Ten] {
            assert_eq!(mix.parts().iter().map(|(_, part)| part).sum::<u32>(), 10_000);
        }
    }
}
