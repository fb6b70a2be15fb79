//! Predicts memory and time at a larger size from proofs at four smaller sizes (`--predict N`), in pure functions.
//!
//! A prover's memory consists of tables of a fixed size and of columns of n rows. Its time also includes FFTs, which take time proportional
//! to n log n. A model has one or two of the terms 1, n and n log n. With all three, it would fit any three points exactly, including their
//! noise. The largest measured size is not used for the fit; the model's error at that size shows how well it extrapolates.

use crate::results::{ArmResult, Interval, WorkloadResult, format, live_peak_bytes, view};
use serde::{Deserialize, Serialize};

/// Number of sizes that are measured for a prediction, each with twice the rows of the previous one. The largest is held out of the fit.
pub(crate) const MEASURED_SIZES: u32 = 4;
/// A model is good if its relative error at every fitted point is at most this. Thread scheduling alone changes a live peak by 0.1%. If the
/// true curve is n log n, a model with n instead has an error of 1% if it also has a constant, and of 7% otherwise.
const GOOD_MISS: f64 = 0.002;
/// A model is also good if its largest error is at most this many times that of the best model. RSS and time scatter so much that chance
/// decides which model fits best.
const GOOD_RATIO: f64 = 3.0;
/// Smallest half-width of an interval for each doubling of the rows, as a share of the prediction. Predicted live peaks were off by up to
/// 0.5% per doubling.
const MIN_MISS: f64 = 0.005;
/// Extra memory for a container, as a share of the predicted peak RSS (the upper end of its interval). It covers page tables, the kernel's
/// buffers, and the files that the prover reads.
const MARGIN: f64 = 0.1;

/// The terms of a model, as functions of the binary logarithm of the rows.
const TERMS: [fn(f64) -> f64; 3] = [|_| 1.0, f64::exp2, |log_rows| log_rows * log_rows.exp2()];
/// The models as pairs of indices into [`TERMS`], in groups; a model with one term lists it twice. Models with one growing term come first,
/// then those that are common for memory. A constant alone comes last, because a value that hardly grows at small sizes may still grow at
/// larger ones.
const MODELS: [&[[usize; 2]]; 4] = [&[[1, 1], [2, 2]], &[[0, 1]], &[[0, 2], [1, 2]], &[[0, 0]]];

/// A quantity as a function of the rows n: `constant + per_row * n + per_row_log * n * log2(n)`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Model {
    constant: f64,
    per_row: f64,
    per_row_log: f64,
}

/// A predicted quantity, in bytes or nanoseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Forecast {
    pub(crate) predicted: f64,
    /// The prediction's interval. Its half-width is the model's largest error at any measured size, times the number of doublings beyond
    /// the fitted sizes.
    pub(crate) interval: Interval,
    /// The model's error at the held-out size, as a share of the measured value; positive if the model is too high.
    pub(crate) held_out_error: f64,
    pub(crate) model: Model,
}

/// The prediction for one arm of one workload. A quantity is predicted only if the arm has a value at every measured size.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Prediction {
    pub(crate) workload: String,
    pub(crate) arm: String,
    pub(crate) log_rows: u32,
    /// The measured sizes. The last one was held out of the fit.
    pub(crate) measured_log_rows: Vec<u32>,
    /// `None` for arms without our arena.
    pub(crate) live_peak_bytes: Option<Forecast>,
    pub(crate) peak_rss_bytes: Option<Forecast>,
    pub(crate) warm_wall_ns: Option<Forecast>,
    /// Memory to request for a container: the upper end of the peak RSS's interval plus a margin, rounded up.
    pub(crate) container_bytes: Option<u64>,
    /// Why there is no prediction, if there is none.
    pub(crate) reason: Option<String>,
}

/// Returns the predictions for `2^log_rows` rows from `results`, which must list the sizes of each workload together, in ascending order.
pub(crate) fn predictions(results: &[WorkloadResult], log_rows: u32) -> Vec<Prediction> {
    let sizes = results.chunk_by(|one, next| one.workload == next.workload);
    sizes.flat_map(|sizes| (0..sizes[0].arms.len()).map(|arm| Prediction::of(sizes, arm, log_rows))).collect()
}

impl Prediction {
    fn of(sizes: &[WorkloadResult], arm: usize, log_rows: u32) -> Self {
        let outcome = |size: &WorkloadResult| {
            Some(format!("at 2^{} rows {}", size.log_rows, format::outcome(&size.arms[arm].outcome)?))
        };
        let (count, of) = (sizes.len(), MEASURED_SIZES as usize);
        let too_few = (count < of).then(|| format!("{count} of {of} sizes were measured"));
        let reason = sizes.iter().find_map(outcome).or(too_few);
        let forecast = |figure: fn(&ArmResult) -> Option<u64>| {
            let point = |size: &WorkloadResult| {
                let figure = figure(&size.arms[arm]).filter(|figure| *figure > 0)?;
                Some((f64::from(size.log_rows), figure as f64))
            };
            let points: Vec<_> = sizes.iter().map(point).collect::<Option<_>>()?;
            Forecast::of(&points, log_rows.into()).filter(|_| reason.is_none())
        };
        let peak_rss_bytes = forecast(|arm| view::figures(arm)?.peak_rss_bytes);
        Self {
            workload: sizes[0].workload.clone(),
            arm: sizes[0].arms[arm].label.clone(),
            log_rows,
            measured_log_rows: sizes.iter().map(|size| size.log_rows).collect(),
            live_peak_bytes: forecast(|arm| live_peak_bytes(std::slice::from_ref(arm))),
            warm_wall_ns: forecast(|arm| view::figures(arm)?.warm_wall_ns),
            container_bytes: peak_rss_bytes.map(|peak| container_bytes(peak.interval.high)),
            peak_rss_bytes,
            reason,
        }
    }
}

/// Adds the margin, and rounds up to four significant bits and to a whole number of MiB.
fn container_bytes(peak_bytes: f64) -> u64 {
    let bytes = (peak_bytes * (1.0 + MARGIN)) as u64;
    bytes.next_multiple_of((bytes.next_power_of_two() >> 4).max(1 << 20))
}

impl Forecast {
    /// Predicts the value at `log_rows` from `points`, pairs of a size and a value in ascending order of size. The last point is held out
    /// of the fit.
    fn of(points: &[(f64, f64)], log_rows: f64) -> Option<Self> {
        let (last, fitted) = points.split_last()?;
        let model = Model::fitted(fitted)?;
        let doublings = log_rows - fitted.last()?.0;
        let predicted = model.at(log_rows);
        let width = predicted * doublings * model.largest_miss(points).max(MIN_MISS);
        let interval = Interval { low: (predicted - width).max(0.0), high: predicted + width };
        Some(Self { predicted, interval, held_out_error: model.miss(last), model })
    }
}

impl Model {
    /// Fits all models and returns a good one: the best of its group, from the first group of [`MODELS`] that has a good one.
    fn fitted(points: &[(f64, f64)]) -> Option<Self> {
        let of_terms = |terms: &[usize; 2]| {
            let model = Self::least_squares(points, *terms)?;
            Some((model.largest_miss(points), model))
        };
        let best_of = |models: &&[[usize; 2]]| {
            models.iter().filter_map(of_terms).min_by(|(one, _), (other, _)| one.total_cmp(other))
        };
        let models: Vec<_> = MODELS.iter().filter_map(best_of).collect();
        let best = models.iter().map(|(miss, _)| *miss).reduce(f64::min)?;
        models.into_iter().find(|(miss, _)| *miss <= GOOD_MISS.max(GOOD_RATIO * best)).map(|(_, model)| model)
    }

    /// Fits a model of these two terms, or of one term given twice, by least squares on the relative errors. `None` if a coefficient would
    /// be negative.
    fn least_squares(points: &[(f64, f64)], terms: [usize; 2]) -> Option<Self> {
        let mut sums = [0.0; 5];
        for &(log_rows, figure) in points {
            let [one, two] = terms.map(|term| TERMS[term](log_rows) / figure);
            for (sum, part) in sums.iter_mut().zip([one * one, one * two, two * two, one, two]) {
                *sum += part;
            }
        }
        let [aa, ab, bb, a, b] = sums;
        let determinant = aa * bb - ab * ab;
        let (one, two) = match terms[0] == terms[1] {
            true => (a / aa, 0.0),
            false => ((a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant),
        };
        let mut found = [0.0; 3];
        found[terms[0]] = one;
        found[terms[1]] += two;
        let [constant, per_row, per_row_log] = found;
        (one >= 0.0 && two >= 0.0).then_some(Self { constant, per_row, per_row_log })
    }

    fn at(&self, log_rows: f64) -> f64 {
        let of_terms = [self.constant, self.per_row, self.per_row_log].into_iter().zip(TERMS);
        of_terms.map(|(factor, term)| factor * term(log_rows)).sum()
    }

    /// Returns the model's error at a point, as a share of the point's value; positive if the model is too high.
    fn miss(&self, &(log_rows, figure): &(f64, f64)) -> f64 {
        self.at(log_rows) / figure - 1.0
    }

    fn largest_miss(&self, points: &[(f64, f64)]) -> f64 {
        points.iter().map(|point| self.miss(point).abs()).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::saved;
    use crate::results::{Outcome, record::PEAK_LIVE_BYTES};

    /// Returns the forecast for 2^17 rows from the curve's values at 2^11 to 2^14 rows, and the true value.
    fn forecast(curve: fn(f64) -> f64) -> (Forecast, f64) {
        let points: Vec<_> = [11.0, 12.0, 13.0, 14.0].map(|log_rows| (log_rows, curve(log_rows))).to_vec();
        (Forecast::of(&points, 17.0).unwrap(), curve(17.0))
    }

    /// Each kind of curve must be predicted at eight times the largest measured size.
    #[test]
    fn known_curves_are_predicted() {
        let curves: [fn(f64) -> f64; 7] = [
            |x| 3e4 * x.exp2(),
            |x| 2e3 * x * x.exp2(),
            |x| 1e9 + 3e4 * x.exp2(),
            // Large tables dominate: the columns make up a thousandth of the smallest value.
            |x| 5e9 + 2.5e3 * x.exp2(),
            |x| 1e8 + 2e3 * x * x.exp2(),
            |x| 3e4 * x.exp2() + 2e3 * x * x.exp2(),
            // A step function: a buffer for n + 100 rows is rounded up to a power of two.
            |x| 1e6 + 32.0 * (x.exp2() as u64 + 100).next_power_of_two() as f64,
        ];
        for (number, curve) in curves.into_iter().enumerate() {
            let (found, truth) = forecast(curve);
            assert!((found.predicted / truth - 1.0).abs() < 0.001, "curve {number}: {found:?}, not {truth}");
            assert!(found.held_out_error.abs() < 0.001, "curve {number}: {found:?}");
            assert!(found.interval.low < truth && truth < found.interval.high, "curve {number}: {found:?}");
        }
        let Model { constant, per_row, per_row_log } = forecast(|x| 3e4 * x.exp2()).0.model;
        assert!((constant, per_row_log) == (0.0, 0.0) && (per_row - 3e4).abs() < 1.0, "more terms than it needs");
    }

    /// A value that falls must not be fitted by a term that grows. If the curve jumps so that no model fits, the error at the held-out size
    /// must show it, and the interval must extend above the true value.
    #[test]
    fn a_curve_that_no_model_fits_has_an_error_at_the_held_out_size() {
        assert_eq!(forecast(|x| 1e9 - 1e3 * x).0.model.per_row, 0.0);
        let (found, truth) = forecast(|x| if x < 14.0 { 1e4 * x.exp2() } else { 1.3e4 * x.exp2() });
        assert!(found.held_out_error < -0.2, "{found:?}");
        assert!(found.interval.high > truth, "{found:?}");
    }

    /// If an arm has no value at one size, nothing may be predicted from the other sizes, and the reason must be stated.
    #[test]
    fn an_arm_that_fails_at_one_size_has_no_prediction() {
        let of_size = |log_rows| {
            let mut result = WorkloadResult { log_rows, ..saved("together").workloads.remove(0) };
            for proof in result.arms.iter_mut().flat_map(|arm| &mut arm.samples) {
                proof.sample.gauges.entry(PEAK_LIVE_BYTES.into()).and_modify(|bytes| *bytes = 1000 << log_rows);
            }
            result.arms.drain(2..4);
            result
        };
        let mut results: Vec<_> = (10..14).map(of_size).collect();
        results[1].arms[1].outcome = Outcome::Failed { round: 2, reason: "died".into() };
        let [glibc, broken, ours] = &predictions(&results, 16)[..] else { panic!("not a prediction for each arm") };
        assert_eq!(broken.reason.as_deref(), Some("at 2^11 rows FAILED in round 2: died"));
        assert_eq!((broken.peak_rss_bytes, broken.container_bytes), (None, None));
        assert_eq!(glibc.live_peak_bytes, None);
        assert_eq!(ours.live_peak_bytes.unwrap().predicted, f64::from(1000 << 16));
        // The peak is 381 MB at every size.
        assert_eq!((glibc.container_bytes, &glibc.reason), (Some(416 << 20), &None));
        let too_few = &predictions(&results[2..], 16)[0];
        assert_eq!(too_few.reason.as_deref(), Some("2 of 4 sizes were measured"));
    }
}
