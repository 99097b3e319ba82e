//! Judges what clients were told during one trial.
//!
//! Each key has one writer, which writes growing numbers, so what a read may show is decided by
//! comparison alone. A write that was not answered may take effect at any time, even after later
//! writes: it is held against a system only once somebody has read it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The write was acknowledged.
    Stored,
    /// The server said that the write had no effect.
    Refused,
    /// The write may have taken effect, or may still do.
    Unknown,
    /// The read showed this write.
    Hit(u64),
    /// The read showed that there is no value.
    Miss,
    /// The read was not answered.
    Failed,
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A write of this number.
    Write(u64),
    /// A read during the trial.
    Read,
    /// A read at the end, when nothing is written and all faults are over.
    FinalRead,
}

/// One operation of one client; times are those since the trial began.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The key.
    pub key: usize,
    /// What was asked.
    pub action: Action,
    /// The member that was asked.
    pub gateway: usize,
    /// When the client asked.
    pub called: Duration,
    /// When the client knew the outcome.
    pub returned: Duration,
    /// What the client was told.
    pub outcome: Outcome,
}

/// What the checker has to know about a trial.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// Number of keys.
    pub keys: usize,
    /// Whether the system may forget values, so that a miss proves nothing.
    pub forgets: bool,
    /// When the fault began.
    pub fault_at: Duration,
    /// Members that the fault hits; operations through them are not those of healthy ones.
    pub victims: Vec<usize>,
    /// The owner of each key when the fault began; None if the system does not tell.
    pub owners: Option<Vec<usize>>,
}

/// What the checker found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Acknowledged writes.
    pub acknowledged: u64,
    /// Keys whose last acknowledged write is missing at the end.
    pub lost: Vec<usize>,
    /// Keys that could not be read at the end.
    pub unreadable: Vec<usize>,
    /// Reads during the trial that showed less than the last acknowledged write.
    pub stale: u64,
    /// Misses of a system that may forget.
    pub misses: u64,
    /// For each key with a failed operation, how long it was unavailable; sorted.
    pub unavailable: Vec<Duration>,
    /// Failed operations on keys of healthy owners, through healthy members, after the fault; None
    /// if owners are unknown.
    pub healthy_errors: Option<u64>,
    /// The 99th percentile of the times of the same operations, failed or not.
    pub healthy_p99: Option<Duration>,
}

impl Verdict {
    /// The longest time that a key was unavailable.
    pub fn worst(&self) -> Duration {
        self.unavailable.last().copied().unwrap_or_default()
    }

    /// The median of the keys that were unavailable at all.
    pub fn median(&self) -> Duration {
        self.unavailable.get(self.unavailable.len() / 2).copied().unwrap_or_default()
    }
}

/// Judges the events of a trial, in any order.
pub fn judge(trial: &Trial, events: &[Event]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut by_key = vec![Vec::new(); trial.keys];
    for event in events {
        by_key[event.key].push(*event);
    }
    for (key, events) in by_key.iter_mut().enumerate() {
        events.sort_unstable_by_key(|event| event.called);
        judge_key(trial, key, events, &mut verdict);
    }
    verdict.unavailable.sort_unstable();
    judge_healthy(trial, events, &mut verdict);
    verdict
}

fn judge_key(trial: &Trial, key: usize, events: &[Event], verdict: &mut Verdict) {
    let writes = Writes::new(events);
    verdict.acknowledged += writes.acknowledged.len() as u64;
    let (mut is_lost, mut is_read) = (false, false);
    for event in events {
        let shown = match (event.action, event.outcome) {
            (_, Outcome::Hit(number)) => Some(number),
            (_, Outcome::Miss) => None,
            _ => continue,
        };
        let is_old = writes.is_older(shown, event.called);
        let is_final = event.action == Action::FinalRead;
        is_read |= is_final;
        if is_old && shown.is_none() && trial.forgets {
            verdict.misses += 1;
        } else if is_old && is_final {
            is_lost = true;
        } else if is_old {
            verdict.stale += 1;
        }
    }
    if is_lost {
        verdict.lost.push(key);
    }
    if !is_read && events.iter().any(|event| event.action == Action::FinalRead) {
        verdict.unreadable.push(key);
    }
    let is_write = |event: &Event| matches!(event.action, Action::Write(_));
    let of_writes = unavailable(events.iter().filter(|event| is_write(event)));
    let of_reads = unavailable(events.iter().filter(|event| event.action == Action::Read));
    let longer = of_writes.max(of_reads);
    if longer > Duration::ZERO {
        verdict.unavailable.push(longer);
    }
}

/// The writes of one key.
struct Writes {
    /// Number, call and return of acknowledged writes, in their order.
    acknowledged: Vec<(u64, Duration, Duration)>,
    /// When a write that was not acknowledged was first known to have taken effect.
    seen: Vec<(u64, Duration)>,
}

impl Writes {
    fn new(events: &[Event]) -> Self {
        let (mut acknowledged, mut seen) = (Vec::new(), Vec::<(u64, Duration)>::new());
        for event in events {
            match (event.action, event.outcome) {
                (Action::Write(number), Outcome::Stored) => {
                    acknowledged.push((number, event.called, event.returned));
                }
                (_, Outcome::Hit(number)) => {
                    match seen.iter_mut().find(|(other, _)| *other == number) {
                        Some((_, at)) => *at = event.returned.min(*at),
                        None => seen.push((number, event.returned)),
                    }
                }
                _ => {}
            }
        }
        Self { acknowledged, seen }
    }

    /// When `number` had certainly taken effect; None if nobody can say.
    fn effective_at(&self, number: u64) -> Option<Duration> {
        let own = self.acknowledged.iter().find(|(other, ..)| *other == number);
        let read = self.seen.iter().find(|(other, _)| *other == number);
        match (own, read) {
            (Some((.., at)), Some((_, seen))) => Some(*at.min(seen)),
            (Some((.., at)), None) | (None, Some((_, at))) => Some(*at),
            (None, None) => None,
        }
    }

    /// Whether a read that began at `called` and showed `shown` missed an acknowledged write.
    fn is_older(&self, shown: Option<u64>, called: Duration) -> bool {
        let later = |(number, begun, ended): &&(u64, Duration, Duration)| {
            let is_later = match shown {
                None => true,
                Some(shown) => {
                    shown < *number && self.effective_at(shown).is_some_and(|at| at <= *begun)
                }
            };
            is_later && *ended <= called
        };
        self.acknowledged.iter().rev().find(later).is_some()
    }
}

/// The sum of the times from a failure to the next success; failures at the end count until the
/// last of them returned.
fn unavailable<'a>(events: impl Iterator<Item = &'a Event>) -> Duration {
    let (mut sum, mut since, mut last) = (Duration::ZERO, None, Duration::ZERO);
    for event in events {
        last = last.max(event.returned);
        if is_error(event.outcome) {
            since.get_or_insert(event.called);
        } else if let Some(begin) = since.take() {
            sum += event.returned.saturating_sub(begin);
        }
    }
    sum + since.map_or(Duration::ZERO, |begin| last.saturating_sub(begin))
}

fn is_error(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Refused | Outcome::Unknown | Outcome::Failed)
}

/// The operations that failed, as CSV: seconds since the fault when the client asked, how long it
/// waited, and so on.
pub fn failed(trial: &Trial, events: &[Event]) -> String {
    let mut text = String::from("asked,waited,action,key,owner,member,outcome\n");
    for event in events.iter().filter(|event| is_error(event.outcome)) {
        let asked = event.called.as_secs_f64() - trial.fault_at.as_secs_f64();
        let waited = event.returned.saturating_sub(event.called).as_secs_f64();
        let owners = trial.owners.as_ref();
        let owner = owners.map_or_else(String::new, |owners| owners[event.key].to_string());
        let Event { action, key, gateway, outcome, .. } = event;
        writeln!(text, "{asked:.3},{waited:.3},{action:?},{key},{owner},{gateway},{outcome:?}")
            .expect("a string takes it");
    }
    text
}

fn judge_healthy(trial: &Trial, events: &[Event], verdict: &mut Verdict) {
    let Some(owners) = &trial.owners else { return };
    let victims: BTreeSet<usize> = trial.victims.iter().copied().collect();
    let (mut errors, mut times) = (0, Vec::new());
    for event in events {
        let is_hit = victims.contains(&owners[event.key]) || victims.contains(&event.gateway);
        if is_hit || event.called < trial.fault_at || event.action == Action::FinalRead {
            continue;
        }
        errors += u64::from(is_error(event.outcome));
        times.push(event.returned.saturating_sub(event.called));
    }
    times.sort_unstable();
    if let Some(p99) = times.get(times.len() * 99 / 100) {
        (verdict.healthy_errors, verdict.healthy_p99) = (Some(errors), Some(*p99));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(action: Action, called: u64, returned: u64, outcome: Outcome) -> Event {
        let [called, returned] = [called, returned].map(Duration::from_secs);
        Event { key: 0, action, gateway: 0, called, returned, outcome }
    }

    fn trial() -> Trial {
        Trial { keys: 1, ..Trial::default() }
    }

    fn write(number: u64, called: u64, outcome: Outcome) -> Event {
        event(Action::Write(number), called, called + 1, outcome)
    }

    fn read(called: u64, outcome: Outcome) -> Event {
        event(Action::Read, called, called + 1, outcome)
    }

    fn last(called: u64, outcome: Outcome) -> Event {
        event(Action::FinalRead, called, called + 1, outcome)
    }

    #[test]
    fn a_planted_loss_is_seen() {
        let writes = [write(1, 0, Outcome::Stored), write(2, 2, Outcome::Stored)];
        let judged = |end| judge(&trial(), &[writes[0], writes[1], last(9, end)]);
        assert_eq!(judged(Outcome::Hit(2)).lost, Vec::<usize>::new());
        assert_eq!(judged(Outcome::Hit(1)).lost, vec![0]);
        assert_eq!(judged(Outcome::Miss).lost, vec![0]);
        assert_eq!(judged(Outcome::Failed).unreadable, vec![0]);
        assert_eq!(judged(Outcome::Hit(2)).acknowledged, 2);
    }

    #[test]
    fn a_planted_stale_read_is_seen() {
        let writes = [write(1, 0, Outcome::Stored), write(2, 2, Outcome::Stored)];
        let stale =
            |called, outcome| judge(&trial(), &[writes[0], writes[1], read(called, outcome)]).stale;
        assert_eq!(stale(4, Outcome::Hit(1)), 1);
        assert_eq!(stale(4, Outcome::Miss), 1);
        assert_eq!(stale(4, Outcome::Hit(2)), 0);
        // The second write was not over when the read began.
        assert_eq!(stale(2, Outcome::Hit(1)), 0);
    }

    #[test]
    fn a_write_without_an_answer_may_come_late_but_only_once() {
        let mut events = vec![
            write(1, 0, Outcome::Stored),
            write(2, 2, Outcome::Unknown),
            write(3, 4, Outcome::Stored),
            read(6, Outcome::Hit(2)),
        ];
        assert_eq!(judge(&trial(), &events).stale, 0);
        events.push(last(9, Outcome::Hit(2)));
        assert_eq!(judge(&trial(), &events).lost, Vec::<usize>::new());
        // It was seen before the third write began, so the third replaced it.
        events.insert(2, event(Action::Read, 3, 3, Outcome::Hit(2)));
        let verdict = judge(&trial(), &events);
        assert_eq!((verdict.stale, verdict.lost), (1, vec![0]));
    }

    #[test]
    fn a_cache_may_forget_but_not_go_back() {
        let cache = Trial { forgets: true, ..trial() };
        let writes = [write(1, 0, Outcome::Stored), write(2, 2, Outcome::Stored)];
        let judged = |end| judge(&cache, &[writes[0], writes[1], read(4, end), last(9, end)]);
        let missed = judged(Outcome::Miss);
        assert_eq!((missed.misses, missed.stale, missed.lost.len()), (2, 0, 0));
        let old = judged(Outcome::Hit(1));
        assert_eq!((old.misses, old.stale, old.lost.len()), (0, 1, 1));
    }

    #[test]
    fn unavailability_lasts_from_a_failure_to_the_next_success() {
        let events = [
            write(1, 0, Outcome::Stored),
            write(2, 2, Outcome::Unknown),
            write(3, 4, Outcome::Refused),
            // Reads do not end what writes suffer.
            read(5, Outcome::Hit(1)),
            write(4, 6, Outcome::Stored),
        ];
        let verdict = judge(&trial(), &events);
        assert_eq!(verdict.unavailable, vec![Duration::from_secs(5)]);
        let verdict = judge(&trial(), &events[..4]);
        assert_eq!(verdict.worst(), Duration::from_secs(3));
    }

    #[test]
    fn errors_are_those_of_healthy_owners_through_healthy_members_after_the_fault() {
        let of = |key, gateway, called| {
            let [called, returned] = [called, called + 1].map(Duration::from_secs);
            let (action, outcome) = (Action::Read, Outcome::Failed);
            Event { key, action, gateway, called, returned, outcome }
        };
        let trial = Trial {
            keys: 2,
            fault_at: Duration::from_secs(5),
            victims: vec![1],
            owners: Some(vec![0, 1]),
            ..Trial::default()
        };
        let verdict = judge(&trial, &[of(0, 0, 1), of(0, 0, 6), of(0, 1, 6), of(1, 0, 6)]);
        assert_eq!(verdict.healthy_errors, Some(1));
        assert_eq!(verdict.healthy_p99, Some(Duration::from_secs(1)));
        let unknown = judge(&Trial { owners: None, ..trial }, &[of(0, 0, 6)]);
        assert_eq!(unknown.healthy_errors, None);
    }
}
