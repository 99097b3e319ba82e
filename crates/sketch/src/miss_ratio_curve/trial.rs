//! Which of two policies of eviction suits the load: CLOCK, or CLOCK with quick demotion.

use super::candidate::Candidate;

/// A policy is better only if the other one missed more reads by this part of its misses.
const LEAST_GAIN: f64 = 0.01;

/// And by this many standard deviations of the reads that only one of them missed.
const STANDARD_DEVIATIONS: f64 = 2.5;

/// From this number of misses on, all counts are halved, so that they follow the load. It is enough
/// to tell a gain of 1 % where the policies differ in a sixth of their misses.
const MOST_MISSES: f64 = 16_384.0;

/// A policy that the engines know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// CLOCK with one recency bit.
    Clock,
    /// CLOCK, and new items that are not read leave sooner.
    Probation,
}

/// Two caches of the present size that see the same reads: the one of [`super::PRESENT`], which
/// evicts by CLOCK, and one that evicts by the other policy.
#[derive(Default)]
pub struct Trial {
    pub(super) candidate: Candidate,
    /// Sampled reads that both missed.
    pub(super) both: f64,
    /// Those that only CLOCK missed.
    pub(super) clock: f64,
    /// Those that only the other missed.
    pub(super) probation: f64,
}

impl Trial {
    /// Bytes of a trial, at most.
    pub const fn most_bytes() -> usize {
        size_of::<Self>() + Candidate::most_bytes()
    }

    /// The policy that missed less, if the difference is large enough to change to it.
    pub fn better(&self) -> Option<Policy> {
        let (clock, probation) = (self.clock, self.probation);
        let difference = (clock - probation).abs();
        let most = self.both + clock.max(probation);
        let chance = STANDARD_DEVIATIONS * (clock + probation).sqrt();
        let is_clear = difference > LEAST_GAIN * most && difference > chance;
        let better = if clock > probation { Policy::Probation } else { Policy::Clock };
        is_clear.then_some(better)
    }

    /// The misses of the policy with probation over those of CLOCK; None before there are any.
    pub fn ratio(&self) -> Option<f64> {
        let clock = self.both + self.clock;
        (clock > 0.0).then(|| (self.both + self.probation) / clock)
    }

    /// Counts a read of an entry, if there is one, and whether the CLOCK cache holds it.
    pub(super) fn read(&mut self, found: Option<u16>, is_in_clock: bool) {
        let is_in_candidate = found.is_some_and(|at| self.candidate.read(at));
        match (is_in_clock, is_in_candidate) {
            (false, false) => self.both += 1.0,
            (false, true) => self.clock += 1.0,
            (true, false) => self.probation += 1.0,
            (true, true) => {}
        }
        if self.both + self.clock + self.probation >= MOST_MISSES {
            self.fade(0.5);
        }
    }

    /// Multiplies all counts.
    pub(super) fn fade(&mut self, left: f64) {
        let counts = [&mut self.both, &mut self.clock, &mut self.probation];
        counts.into_iter().for_each(|count| *count *= left);
    }
}
