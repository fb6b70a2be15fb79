//! Maps quantities to positions on a chart, and chooses round values for ticks. Pure.

/// An axis: a range of values mapped to a range of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// A linear scale from `low` at `from` to `high` at `to`.
    pub(super) fn linear(low: f64, high: f64, from: f64, to: f64) -> Self {
        // A range of equal values gets a width, to avoid a division by zero.
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, logarithmic: false, from, to }
    }

    /// A logarithmic scale from `low` at `from` to `high` at `to`; `low` must be above 0.
    pub(super) fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = low.max(f64::MIN_POSITIVE);
        let high = if high > low { high } else { low * 2.0 };
        Self { low, high, logarithmic: true, from, to }
    }

    /// The same values over other positions.
    pub(super) fn over(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// The position of `value`, clamped to the range.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        let share = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share * (self.to - self.from)
    }

    /// About five round values within the range.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return self.even_ticks();
        }
        let decade = |exponent: i32| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(exponent));
        let exponents = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let within: Vec<_> = exponents.flat_map(decade).filter(|tick| (self.low..=self.high).contains(tick)).collect();
        match within.len() {
            0..=1 => self.even_ticks(),
            2..=7 => within,
            _ => within.into_iter().filter(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9).collect(),
        }
    }

    fn even_ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 4.0;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|digit| digit * magnitude).into_iter().find(|step| *step >= rough * (1.0 - 1e-9));
        let step = step.unwrap_or(rough);
        let (first, last) = ((self.low / step - 1e-9).ceil() as i64, (self.high / step + 1e-9).floor() as i64);
        (first..=last).map(|count| count as f64 * step).collect()
    }
}

/// The smallest range with all finite `values`; `None` if there are none.
pub(super) fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().filter(|value| value.is_finite()).fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_where_their_share_of_the_range_is() {
        let even = Scale::linear(0.0, 10.0, 100.0, 200.0);
        assert_eq!([-5.0, 0.0, 2.5, 10.0, 99.0].map(|value| even.at(value)), [100.0, 100.0, 125.0, 200.0, 200.0]);
        let factors = Scale::logarithmic(1.0, 100.0, 0.0, 2.0);
        assert!((factors.at(10.0) - 1.0).abs() < 1e-12);
    }

    /// One arm, or equal arms, make a range of no width. Dividing by it would draw at NaN.
    #[test]
    fn a_range_of_one_value_still_has_places_and_ticks() {
        for scale in [Scale::linear(3.0, 3.0, 0.0, 1.0), Scale::logarithmic(3.0, 3.0, 0.0, 1.0)] {
            assert!(scale.at(3.0).is_finite() && !scale.ticks().is_empty(), "{scale:?}");
        }
        assert!(Scale::logarithmic(0.0, 0.0, 0.0, 1.0).at(0.0).is_finite());
    }

    #[test]
    fn ticks_are_round_and_few() {
        let near = |ticks: Vec<f64>, expected: &[f64]| {
            assert_eq!(ticks.len(), expected.len(), "{ticks:?}");
            assert!(ticks.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{ticks:?}");
        };
        near(Scale::linear(0.9, 1.1, 0.0, 1.0).ticks(), &[0.9, 0.95, 1.0, 1.05, 1.1]);
        near(Scale::linear(0.0, 386e6, 0.0, 1.0).ticks(), &[0.0, 1e8, 2e8, 3e8]);
        near(Scale::logarithmic(0.015, 0.9, 0.0, 1.0).ticks(), &[0.02, 0.05, 0.1, 0.2, 0.5]);
        near(Scale::logarithmic(1.0, 1e4, 0.0, 1.0).ticks(), &[1.0, 10.0, 100.0, 1e3, 1e4]);
    }
}
