//! Parsers of option values: whole numbers in a range, percentages, times, and sweeps.

use crate::results::Sweep;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// The quantity that `--sweep` varies, and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SweepOver {
    pub(crate) sweep: Sweep,
    pub(crate) values: Vec<u32>,
}

/// Valid sizes and numbers of threads on the command line; a workload may accept fewer.
pub(crate) const LOG_ROWS: RangeInclusive<u32> = 0..=63;
pub(crate) const THREADS: RangeInclusive<u32> = 1..=1024;

/// Parses `log-rows=12..17`, `log-rows=12,14,16` or `threads=1,2,4,8`. A range includes both ends, with `..` and `..=`
/// alike.
pub(crate) fn sweep(given: &str) -> Result<SweepOver, String> {
    let (sweep, values, range) = match given.split_once('=') {
        Some(("log-rows", values)) => (Sweep::LogRows, values, LOG_ROWS),
        Some(("threads", values)) => (Sweep::Threads, values, THREADS),
        _ => return Err("valid are log-rows=FROM..TO and threads=FROM..TO, or a list as in threads=1,2,4".into()),
    };
    let parsed: Option<Vec<_>> = values.split(',').map(|part| span(part, &range)).collect();
    let Some(spans) = parsed else {
        let (low, high) = (range.start(), range.end());
        return Err(format!("valid are numbers from {low} to {high} as in 1,2,4, or a range as in 12..17"));
    };
    let mut distinct = Vec::new();
    for value in spans.into_iter().flatten() {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    Ok(SweepOver { sweep, values: distinct })
}

/// Parses a number, or a range that is not empty.
fn span(given: &str, valid: &RangeInclusive<u32>) -> Option<RangeInclusive<u32>> {
    let number = |text: &str| text.parse().ok().filter(|number| valid.contains(number));
    let span = match given.split_once("..") {
        Some((low, high)) => number(low)?..=number(high.strip_prefix('=').unwrap_or(high))?,
        None => number(given)?..=number(given)?,
    };
    (!span.is_empty()).then_some(span)
}

/// Parses a whole number in `range`. The error states the range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |given| {
        let number = given.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("valid are whole numbers from {} to {}", range.start(), range.end()))
    }
}

/// Parses whole seconds, at most `most`.
pub(crate) fn seconds(most: u64) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |given| whole(1..=most)(given).map(Duration::from_secs)
}

/// Parses `2%` or `2` as 0.02.
pub(crate) fn percentage(given: &str) -> Result<f64, String> {
    let number = given.strip_suffix('%').unwrap_or(given).parse().ok();
    let number = number.filter(|percent| (0.1..=100.0).contains(percent));
    number.map(|percent: f64| percent / 100.0).ok_or_else(|| "valid are percentages from 0.1% to 100%".into())
}

/// Parses `512`, `64k`, `2m` or `1g`: the suffixes are powers of 1024.
pub(crate) fn bytes(given: &str) -> Result<u64, String> {
    let lower = given.to_ascii_lowercase();
    let (digits, shift) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 10),
        Some(b'm') => (&lower[..lower.len() - 1], 20),
        Some(b'g') => (&lower[..lower.len() - 1], 30),
        _ => (&lower[..], 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    // Zero is not a valid size of a slab, zone or threshold. Sums of sizes above 2^60 overflow.
    let number = number.filter(|number| (1..=1 << 60).contains(number));
    number.ok_or_else(|| "valid are sizes like 512, 64k, 2m and 1g".into())
}

/// Parses `90`, `90s` or `5m`.
pub(crate) fn time(given: &str) -> Result<Duration, String> {
    let (digits, seconds_each) = match given.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (given.strip_suffix('s').unwrap_or(given), 1),
    };
    let seconds = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds_each));
    let seconds = seconds.filter(|seconds| (1..=1_000_000).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "valid are times like 90 (seconds) and 5m (minutes)".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_ranges_with_both_ends_and_lists() {
        let values = |given| sweep(given).unwrap().values;
        assert_eq!(values("log-rows=12..15"), [12, 13, 14, 15]);
        assert_eq!(values("log-rows=12..=15"), [12, 13, 14, 15]);
        assert_eq!(values("log-rows=12,14..16,14"), [12, 14, 15, 16]);
        assert_eq!(sweep("threads=1,2").unwrap(), SweepOver { sweep: Sweep::Threads, values: vec![1, 2] });
        for (wrong, valid) in [
            ("rows=1..2", "log-rows=FROM..TO"),
            ("log-rows", "log-rows=FROM..TO"),
            ("log-rows=15..12", "from 0 to 63"),
            ("log-rows=12..64", "from 0 to 63"),
            ("threads=0", "from 1 to 1024"),
            ("threads=1,,2", "from 1 to 1024"),
        ] {
            assert!(sweep(wrong).unwrap_err().contains(valid), "{wrong}");
        }
    }

    #[test]
    fn shares_and_times_are_read_with_their_units() {
        assert_eq!((percentage("2%"), percentage("2.5")), (Ok(0.02), Ok(0.025)));
        assert_eq!((time("90"), time("90s"), time("5m")), (Ok(secs(90)), Ok(secs(90)), Ok(secs(300))));
        for wrong in ["0", "-2%", "two", "200%", "NaN"] {
            assert!(percentage(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "m", "1h", "-3", "99999999999999999999m", "18446744073709551615m"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }
}
