//! Numbers that were measured in several rounds, over several passes through all figures: the
//! middle of them, and how far it may be off.
//!
//! 1. A ratio, a share or a prediction is made of each round by itself: what all of a round share,
//!    as how fast the machine was just then, is not in what its rounds differ by.
//! 2. How far a number may be off is half of what lies between its least and its greatest round,
//!    widened where there are fewer than six: few rounds seldom meet the ends. The factors are
//!    those with which the mean of as many normal numbers lies within it 19 times in 20 (E. Lord,
//!    Biometrika 34, 1947).
//! 3. It is no less than two standard errors of what the passes differ by, in the middle of all
//!    that is shown beside the number: where the rounds of one happen to lie close together, its
//!    neighbours tell what the machine does over minutes.
//! 4. What is the same in all rounds was counted or computed, and has none.

use super::point::Point;
use amalgam_bench::measure::Spread;

/// Something of each round, by pass.
#[derive(Clone, Debug)]
pub struct Rounds<T>(pub Vec<Vec<T>>);

impl<T> Rounds<T> {
    /// What follows from each by itself.
    pub fn map<U>(&self, what: impl Fn(&T) -> U) -> Rounds<U> {
        Rounds(self.0.iter().map(|pass| pass.iter().map(&what).collect()).collect())
    }
}

impl<T> Rounds<Option<T>> {
    /// All of them, where none lacks.
    fn whole(self) -> Option<Rounds<T>> {
        let passes = self.0.into_iter().map(|pass| pass.into_iter().collect());
        let passes: Option<Vec<Vec<T>>> = passes.collect();
        passes.map(Rounds)
    }
}

/// The middle of a number's rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub value: f64,
    /// How far it may be off, as a part of it.
    pub error: Option<f64>,
    /// The square of a pass's standard deviation, over that of the value.
    variance: f64,
    passes: usize,
}

/// What half of the range of so many rounds is widened by: twice Lord's factor.
fn widening(rounds: usize) -> f64 {
    match rounds {
        0..=2 => 12.7,
        3 => 2.61,
        4 => 1.43,
        5 => 1.01,
        // Never less than half of what was seen.
        _ => 1.0,
    }
}

/// Over its mean: the middle of variances of few numbers is less than what they are in the mean,
/// which one of them that is far off would make its own (after Wilson and Hilferty).
fn median_of_chi_squared(degrees: usize) -> f64 {
    (1.0 - 2.0 / (9.0 * degrees.max(1) as f64)).powi(3)
}

impl Estimate {
    /// Of at least one round, without regard to its neighbours.
    fn of(rounds: &Rounds<f64>) -> Option<Self> {
        let all = rounds.0.concat();
        let Spread { median: value, min, max } = Spread::of(&all)?;
        let passes: Vec<f64> =
            rounds.0.iter().filter_map(|pass| Some(Spread::of(pass)?.median)).collect();
        let mean = passes.iter().sum::<f64>() / passes.len() as f64;
        let squares: f64 = passes.iter().map(|pass| (pass - mean).powi(2)).sum();
        let variance = squares / (passes.len().max(2) - 1) as f64 / value.powi(2);
        // What all rounds of a pass have alike was measured once in it.
        let is_one = |pass: &Vec<f64>| pass.iter().all(|round| *round == pass[0]);
        let count = |pass: &Vec<f64>| if is_one(pass) { 1 } else { pass.len() };
        let count = rounds.0.iter().map(count).sum();
        let error = (max - min) / 2.0 * widening(count) / value.abs();
        let error = Some(error).filter(|error| max > min && error.is_finite());
        Some(Self { value, error, variance, passes: passes.len() })
    }

    /// Of numbers beside each other; none of one that lacks a round.
    pub fn beside(numbers: Vec<Rounds<Option<f64>>>) -> Vec<Option<Self>> {
        let of = |rounds: Rounds<Option<f64>>| Self::of(&rounds.whole()?);
        let mut estimates: Vec<Option<Self>> = numbers.into_iter().map(of).collect();
        let measured = estimates.iter().flatten().filter(|one| one.error.is_some());
        let variances: Vec<f64> = measured.map(|one| one.variance).collect();
        let Some(Spread { median, .. }) = Spread::of(&variances) else { return estimates };
        for estimate in estimates.iter_mut().flatten() {
            let variance = median / median_of_chi_squared(estimate.passes - 1);
            let least = 2.0 * (variance / estimate.passes as f64).sqrt();
            estimate.error = estimate.error.map(|error| error.max(least));
        }
        estimates
    }

    /// The least and the most that it may be.
    pub fn ends(&self) -> [f64; 2] {
        let error = self.value.abs() * self.error.unwrap_or(0.0);
        [self.value - error, self.value + error]
    }
}

/// A series' value at a place.
pub fn find(points: &[Point], like: &Point) -> Option<f64> {
    let is_it = |point: &&Point| point.series == like.series && point.place == like.place;
    points.iter().find(is_it).map(|point| point.value)
}

/// The middle of each point; what lacks in a round is left out.
pub fn middle(rounds: &Rounds<Vec<Point>>) -> Vec<Point> {
    let Some(first) = rounds.0.first().and_then(|pass| pass.first()) else { return Vec::new() };
    let numbers = first.iter().map(|like| rounds.map(|points| find(points, like))).collect();
    let estimates = Estimate::beside(numbers);
    let point = |(like, estimate): (&Point, Option<Estimate>)| {
        let Estimate { value, error, .. } = estimate?;
        Some(Point { value, spread: error, ..like.clone() })
    };
    first.iter().zip(estimates).filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::super::point::Place;
    use super::*;

    fn rounds(passes: &[&[f64]]) -> Rounds<Option<f64>> {
        Rounds(passes.iter().map(|pass| pass.iter().copied().map(Some).collect()).collect())
    }

    fn alone(passes: &[&[f64]]) -> Estimate {
        Estimate::beside(vec![rounds(passes)])[0].expect("an estimate")
    }

    #[test]
    fn few_rounds_are_widened_and_passes_are_in_what_they_differ_by() {
        let close = |estimate: Estimate, value: f64, error: f64| {
            assert!((estimate.value - value).abs() < 1e-9, "{estimate:?}");
            assert!((estimate.error.expect("rounds differ") - error).abs() < 1e-9, "{estimate:?}");
        };
        // Half of 8 over 100, times 1.43 for four.
        close(alone(&[&[96.0, 101.0], &[104.0, 99.0]]), 100.0, 0.04 * 1.43);
        // Two passes 19.9 apart: twice the error of their mean, as one variance alone tells it.
        let least = 0.199 / median_of_chi_squared(1).sqrt();
        close(alone(&[&[90.0, 90.1], &[110.0, 109.9]]), 100.0, least);
        close(alone(&[&[99.0], &[101.0]]), 100.0, 0.01 * 12.7);
        // As many rounds as were measured, not as they are repeated beside others.
        close(alone(&[&[99.0, 99.0], &[101.0, 101.0]]), 100.0, 0.01 * 12.7);
        assert_eq!(alone(&[&[7.0, 7.0], &[7.0, 7.0]]).error, None);
        // Both ends were seen.
        let six: &[f64] = &[98.0, 102.0, 100.0];
        close(alone(&[six, six]), 100.0, 0.02);
        close(alone(&[six, &[99.0, 101.0, 100.5]]), 100.25, 2.0 / 100.25);
    }

    #[test]
    fn what_happens_to_stand_still_is_no_surer_than_its_neighbours() {
        let still: &[&[f64]] = &[&[100.0, 100.1], &[100.05, 100.0]];
        assert!(alone(still).error.expect("rounds differ") < 0.002);
        let moved: &[&[f64]] = &[&[80.0, 81.0], &[120.0, 119.0]];
        let all = vec![rounds(still), rounds(moved), rounds(moved), rounds(&[&[5.0], &[5.0]])];
        let of = |all| -> Vec<Option<f64>> {
            Estimate::beside(all).into_iter().map(|one| one.and_then(|one| one.error)).collect()
        };
        let errors = of(all);
        // Passes of 80.5 and 119.5: 0.39 apart.
        let least = 0.39 / median_of_chi_squared(1).sqrt();
        assert!((errors[0].unwrap() - least).abs() < 1e-3, "{errors:?}");
        assert_eq!((errors[1], errors[3]), (errors[0], None));
        // One that is far off makes no others so.
        let errors = of(vec![rounds(still), rounds(still), rounds(moved)]);
        assert!(errors[0].unwrap() < 0.002 && errors[2].unwrap() > 0.28, "{errors:?}");
        assert_eq!(Estimate::beside(vec![Rounds(vec![vec![Some(1.0), None]])]), [None]);
    }

    #[test]
    fn points_that_lack_in_a_round_are_left_out() {
        let point = |series: &str, value| Point::new(series, Place::number(1.0), value);
        let both = vec![point("hotring-s", 4.0), point("chaining", 2.0)];
        let passes = vec![vec![both.clone()], vec![vec![point("hotring-s", 6.0)]]];
        let shown = middle(&Rounds(passes));
        assert_eq!(shown.len(), 1);
        assert_eq!((shown[0].series.as_str(), shown[0].value), ("hotring-s", 5.0));
    }
}
