//! How long other nodes take to answer this one: the time between a probe, as super peers send to
//! the members that they watch, and its answer. It has the turns of both event loops in it, as that
//! of a request has.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use amalgam_cluster::overlay::Peer;

/// A node that was not probed for this long is not told of: others watch it now.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// A new measurement counts for 1/N in the smoothed time, as in TCP's (RFC 6298).
const SMOOTHING_PARTS: u32 = 8;

/// The round trips to all nodes that this one probes.
#[derive(Debug, Default)]
pub struct RoundTrips(BTreeMap<Peer, RoundTrip>);

#[derive(Debug)]
struct RoundTrip {
    /// None before the first answer.
    smoothed: Option<Duration>,
    /// When the last probe was sent.
    last_asked: Instant,
    /// When the first probe was sent that is not answered; None if all are.
    asked: Option<Instant>,
}

impl RoundTrips {
    /// A probe was sent to a node.
    pub fn ask(&mut self, peer: Peer, now: Instant) {
        let new = || RoundTrip { smoothed: None, last_asked: now, asked: None };
        let trip = self.0.entry(peer).or_insert_with(new);
        trip.last_asked = now;
        trip.asked.get_or_insert(now);
    }

    /// A node answered a probe.
    pub fn answer(&mut self, peer: Peer, now: Instant) {
        if let Some(trip) = self.0.get_mut(&peer)
            && let Some(asked) = trip.asked.take()
        {
            let time = now.saturating_duration_since(asked);
            let smooth = |old: Duration| (old * (SMOOTHING_PARTS - 1) + time) / SMOOTHING_PARTS;
            trip.smoothed = Some(trip.smoothed.map_or(time, smooth));
        }
    }

    /// A connection with a node has closed: what was measured says nothing of it now.
    pub fn interrupt(&mut self, peer: Peer) {
        self.0.remove(&peer);
    }

    /// Forgets nodes that are not members.
    pub fn retain(&mut self, is_member: impl Fn(Peer) -> bool) {
        self.0.retain(|peer, _| is_member(*peer));
    }

    /// The smoothed time of each node, or how long its answer is outstanding if that is longer.
    pub fn all(&self, now: Instant) -> Vec<(Peer, Duration)> {
        let time = |trip: &RoundTrip| {
            let outstanding = trip.asked.map(|asked| now.saturating_duration_since(asked));
            trip.smoothed.max(outstanding)
        };
        let is_probed =
            |trip: &RoundTrip| now.saturating_duration_since(trip.last_asked) < FORGOTTEN;
        let probed = self.0.iter().filter(|(_, trip)| is_probed(trip));
        probed.filter_map(|(peer, trip)| Some((*peer, time(trip)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use amalgam_cluster::ids::NodeId;

    use super::*;

    #[test]
    fn times_are_smoothed_and_an_outstanding_answer_shows() {
        let peer = Peer { node: NodeId::new(7).expect("a node"), incarnation: 2 };
        let (mut trips, begin) = (RoundTrips::default(), Instant::now());
        let after = |ms| begin + Duration::from_millis(ms);
        let of = |trips: &RoundTrips, ms| trips.all(after(ms)).first().map(|(_, time)| *time);
        trips.answer(peer, begin);
        assert_eq!(of(&trips, 0), None, "nobody asked it");
        trips.ask(peer, begin);
        trips.answer(peer, after(8));
        assert_eq!(of(&trips, 500), Some(Duration::from_millis(8)));
        trips.ask(peer, after(1_000));
        trips.answer(peer, after(1_016));
        assert_eq!(of(&trips, 1_500), Some(Duration::from_millis(9)), "7/8 of 8, 1/8 of 16");
        // The second probe does not hide that the first has no answer.
        trips.ask(peer, after(2_000));
        trips.ask(peer, after(3_000));
        assert_eq!(of(&trips, 2_001), Some(Duration::from_millis(9)));
        assert_eq!(of(&trips, 4_000), Some(Duration::from_secs(2)));
        assert_eq!(of(&trips, 9_000), None, "others probe it");
        trips.interrupt(peer);
        assert_eq!(of(&trips, 4_000), None, "it may be dead");
        trips.ask(peer, after(5_000));
        trips.answer(peer, after(5_001));
        assert_eq!(of(&trips, 5_001), Some(Duration::from_millis(1)));
        trips.retain(|_| false);
        assert_eq!(of(&trips, 5_000), None);
    }
}
