//! Formats quantities for human readers.

use crate::results::{Interval, Outcome, Ratio, Verdict};
use indicatif::HumanCount;

/// Formats a time with three significant digits.
pub(crate) fn time(ns: u64) -> String {
    scaled(ns as f64 / 1e6, ["ms", "s"])
}

/// Formats bytes with three significant digits, in decimal units.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64 / 1e6, ["MB", "GB"])
}

/// Formats a value given in the small unit. Uses the large unit, a thousand times as large, from 1000 on.
fn scaled(value: f64, [small, large]: [&str; 2]) -> String {
    if value >= 999.5 {
        format!("{} {large}", three_digits(value / 1e3))
    } else {
        format!("{} {small}", three_digits(value))
    }
}

/// Formats bytes in MiB or GiB, the units of zk-alloc's own statistics.
pub(crate) fn mebibytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    if mebibytes >= 1023.95 { format!("{:.2} GiB", mebibytes / 1024.0) } else { format!("{mebibytes:.1} MiB") }
}

/// Formats a change in bytes, with its sign, in MiB or GiB.
pub(crate) fn change(before: u64, after: u64) -> String {
    let sign = if after < before { "\u{2212}" } else { "+" };
    format!("{sign}{}", mebibytes(after.abs_diff(before)))
}

/// Formats bytes in MiB or KiB if they are a whole number of these, and otherwise in bytes.
pub(crate) fn binary_bytes(bytes: usize) -> String {
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Formats a count, with commas between thousands.
pub(crate) fn count(count: u64) -> String {
    HumanCount(count).to_string()
}

/// Formats a ratio with its interval, if it has one.
pub(crate) fn ratio(ratio: &Ratio) -> String {
    match ratio.interval {
        Some(Interval { low, high }) => format!("{:.3} [{low:.3}, {high:.3}]", ratio.median),
        None => format!("{:.3}", ratio.median),
    }
}

/// Returns a verdict in the words of the docs and the README.
pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoDifferenceShown => "no difference shown",
        Verdict::TooFewRounds => "too few rounds",
    }
}

/// States why an arm did not finish; `None` if it finished.
pub(crate) fn outcome(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Finished => None,
        Outcome::Failed { round, reason } => Some(format!("FAILED in round {round}: {reason}")),
        Outcome::LeftOut { reason } => Some(format!("left out: {reason}")),
        Outcome::Interrupted => Some("interrupted: rounds are missing".into()),
    }
}

/// Formats byte-seconds as a number of gigabyte-seconds, without the unit.
pub(crate) fn gigabyte_seconds(byte_seconds: u64) -> String {
    let value = byte_seconds as f64 / 1e9;
    if value >= 0.1 { three_digits(value) } else { format!("{value:.3}") }
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_keep_three_digits_across_their_units() {
        let times = [812_400_000, 8_124_000, 999_600_000, 12_345_000_000].map(time);
        assert_eq!(times, ["812 ms", "8.12 ms", "1.00 s", "12.3 s"]);
        assert_eq!([367_000_000, 12_340_000, 1_234_000_000, 0].map(bytes), ["367 MB", "12.3 MB", "1.23 GB", "0.00 MB"]);
        assert_eq!([0, 999, 84_012, 1_234_567].map(count), ["0", "999", "84,012", "1,234,567"]);
    }
}
