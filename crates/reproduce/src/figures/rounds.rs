//! Statistics of numbers that were measured in several rounds, over several passes through all
//! figures: the median, and an estimate of its error.
//!
//! 1. A ratio, a share or a prediction is computed from each round by itself. So the conditions
//!    that all numbers of a round share, such as how fast the machine was then, cancel out.
//! 2. The error is half the range of the rounds, widened where there are fewer than six, because
//!    few rounds seldom include the extremes. The factors are those with which the mean of as many
//!    normally distributed numbers lies within it 19 times in 20 (E. Lord, Biometrika 34, 1947).
//! 3. The error is at least two standard errors of the passes' mean, taken as the median over all
//!    numbers that are shown together. So where the rounds of one number happen to lie close
//!    together, the error bars still include drift of the machine over minutes.
//! 4. A number that is the same in all rounds was counted or computed, and has no error.

use super::point::Point;
use amalgam_bench::measure::Spread;

/// A value for each round: the outer list has the passes, the inner ones their rounds.
#[derive(Clone, Debug)]
pub struct Rounds<T>(pub Vec<Vec<T>>);

impl<T> Rounds<T> {
    /// Applies a function to the value of each round.
    pub fn map<U>(&self, what: impl Fn(&T) -> U) -> Rounds<U> {
        Rounds(self.0.iter().map(|pass| pass.iter().map(&what).collect()).collect())
    }
}

impl<T> Rounds<Option<T>> {
    /// All values; None if any round has none.
    fn whole(self) -> Option<Rounds<T>> {
        let passes = self.0.into_iter().map(|pass| pass.into_iter().collect());
        let passes: Option<Vec<Vec<T>>> = passes.collect();
        passes.map(Rounds)
    }
}

/// The median of a number's rounds, with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median of the rounds.
    pub value: f64,
    /// How far the median may be off, as a part of it; None if all rounds are the same.
    pub error: Option<f64>,
    /// The variance of the passes' medians, over the square of the value.
    variance: f64,
    passes: usize,
}

/// The factor that half the range of N rounds is multiplied by: twice Lord's factor.
fn widening(rounds: usize) -> f64 {
    match rounds {
        0..=2 => 12.7,
        3 => 2.61,
        4 => 1.43,
        5 => 1.01,
        // Never less than half of the range that was seen.
        _ => 1.0,
    }
}

/// The median of a chi-squared distribution over its mean (after Wilson and Hilferty). The median
/// of several variances underestimates the variance by this factor, but unlike their mean it is not
/// dominated by a single outlier.
fn median_of_chi_squared(degrees: usize) -> f64 {
    (1.0 - 2.0 / (9.0 * degrees.max(1) as f64)).powi(3)
}

impl Estimate {
    /// The estimate of a number from its own rounds alone; None if there is no round.
    fn of(rounds: &Rounds<f64>) -> Option<Self> {
        let all = rounds.0.concat();
        let Spread { median: value, min, max } = Spread::of(&all)?;
        let passes: Vec<f64> =
            rounds.0.iter().filter_map(|pass| Some(Spread::of(pass)?.median)).collect();
        let mean = passes.iter().sum::<f64>() / passes.len() as f64;
        let squares: f64 = passes.iter().map(|pass| (pass - mean).powi(2)).sum();
        let variance = squares / (passes.len().max(2) - 1) as f64 / value.powi(2);
        // A value that all rounds of a pass share was measured once in the pass.
        let is_one = |pass: &Vec<f64>| pass.iter().all(|round| *round == pass[0]);
        let count = |pass: &Vec<f64>| if is_one(pass) { 1 } else { pass.len() };
        let count = rounds.0.iter().map(count).sum();
        let error = (max - min) / 2.0 * widening(count) / value.abs();
        let error = Some(error).filter(|error| max > min && error.is_finite());
        Some(Self { value, error, variance, passes: passes.len() })
    }

    /// The estimates of numbers that are shown together, which share the variance between passes. A
    /// number that lacks a round has none.
    pub fn together(numbers: Vec<Rounds<Option<f64>>>) -> Vec<Option<Self>> {
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

    /// The lower and the upper end of the error bar.
    pub fn ends(&self) -> [f64; 2] {
        let error = self.value.abs() * self.error.unwrap_or(0.0);
        [self.value - error, self.value + error]
    }
}

/// The value of the point in `points` with the series and the place of `like`.
pub fn find(points: &[Point], like: &Point) -> Option<f64> {
    let is_it = |point: &&Point| point.series == like.series && point.place == like.place;
    points.iter().find(is_it).map(|point| point.value)
}

/// The median of each point. A point that any round lacks is left out.
pub fn middle(rounds: &Rounds<Vec<Point>>) -> Vec<Point> {
    let Some(first) = rounds.0.first().and_then(|pass| pass.first()) else { return Vec::new() };
    let numbers = first.iter().map(|like| rounds.map(|points| find(points, like))).collect();
    let estimates = Estimate::together(numbers);
    let point = |(like, estimate): (&Point, Option<Estimate>)| {
        let Estimate { value, error, .. } = estimate?;
        Some(Point { value, spread: error, ..like.clone() })
    };
    first.iter().zip(estimates).filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::super::point::AxisPosition;
    use super::*;

    fn rounds(passes: &[&[f64]]) -> Rounds<Option<f64>> {
        Rounds(passes.iter().map(|pass| pass.iter().copied().map(Some).collect()).collect())
    }

    fn alone(passes: &[&[f64]]) -> Estimate {
        Estimate::together(vec![rounds(passes)])[0].expect("an estimate")
    }

    #[test]
    fn few_rounds_are_widened_and_passes_are_in_what_they_differ_by() {
        let close = |estimate: Estimate, value: f64, error: f64| {
            assert!((estimate.value - value).abs() < 1e-9, "{estimate:?}");
            assert!((estimate.error.expect("rounds differ") - error).abs() < 1e-9, "{estimate:?}");
        };
        // Half of 8 over 100, times 1.43 for four.
        close(alone(&[&[96.0, 101.0], &[104.0, 99.0]]), 100.0, 0.04 * 1.43);
        // Two passes 19.9 apart: twice the standard error of their mean, from one variance alone.
        let least = 0.199 / median_of_chi_squared(1).sqrt();
        close(alone(&[&[90.0, 90.1], &[110.0, 109.9]]), 100.0, least);
        close(alone(&[&[99.0], &[101.0]]), 100.0, 0.01 * 12.7);
        // A repeated value counts as one round, as it was measured once.
        close(alone(&[&[99.0, 99.0], &[101.0, 101.0]]), 100.0, 0.01 * 12.7);
        assert_eq!(alone(&[&[7.0, 7.0], &[7.0, 7.0]]).error, None);
        // With six rounds the range is not widened.
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
            Estimate::together(all).into_iter().map(|one| one.and_then(|one| one.error)).collect()
        };
        let errors = of(all);
        // Passes of 80.5 and 119.5: 0.39 apart.
        let least = 0.39 / median_of_chi_squared(1).sqrt();
        assert!((errors[0].unwrap() - least).abs() < 1e-3, "{errors:?}");
        assert_eq!((errors[1], errors[3]), (errors[0], None));
        // An outlier among the numbers does not widen the others' errors.
        let errors = of(vec![rounds(still), rounds(still), rounds(moved)]);
        assert!(errors[0].unwrap() < 0.002 && errors[2].unwrap() > 0.28, "{errors:?}");
        assert_eq!(Estimate::together(vec![Rounds(vec![vec![Some(1.0), None]])]), [None]);
    }

    #[test]
    fn points_that_lack_in_a_round_are_left_out() {
        let point = |series: &str, value| Point::new(series, AxisPosition::number(1.0), value);
        let both = vec![point("hotring-s", 4.0), point("chaining", 2.0)];
        let passes = vec![vec![both.clone()], vec![vec![point("hotring-s", 6.0)]]];
        let shown = middle(&Rounds(passes));
        assert_eq!(shown.len(), 1);
        assert_eq!((shown[0].series.as_str(), shown[0].value), ("hotring-s", 5.0));
    }
}
