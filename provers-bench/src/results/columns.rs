//! The columns of every table: heading, unit, content of the cells, and the places that show the column.
//!
//! To add a measured column, add a field to [`Sample`] and a row here.

use crate::results::format;
use crate::results::proof::Proof;
use crate::results::record::{ArmResult, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::summary::Summary;
use crate::results::timed::Timed;
use crate::results::view;
use crate::sample::Sample;

/// One column.
pub(crate) struct Column {
    pub(crate) unit: Unit,
    pub(crate) cell: Cell,
    pub(crate) shown: &'static [Shown],
}

/// Unit of a column's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Nanoseconds,
    Bytes,
    /// Shown in gigabyte seconds.
    ByteSeconds,
    Count,
    /// Relative to the baseline's figure, or to another one.
    Ratio,
    Words,
}

/// The figure that an arm shows in a column.
pub(crate) enum Cell {
    /// The median over its warm proofs.
    Warm(fn(&Sample) -> Option<u64>),
    /// A whole number from the arm's summary, or from the arm and the workload. `Part` and `Ratio` read the same
    /// sources.
    Whole(fn(&Seen<'_>) -> Option<u64>),
    Part(fn(&Seen<'_>) -> Option<f64>),
    /// A ratio with its interval.
    Ratio(fn(&Seen<'_>) -> Option<Ratio>),
    Verdict,
    /// None: the column describes single proofs.
    OfProofs,
}

/// The place that shows a column, and its heading. `{baseline}` stands for the baseline arm, `{warm}` for the time of
/// the samples that decide the verdict.
pub(crate) enum Shown {
    /// On the terminal and in Markdown.
    Text(&'static str),
    /// On the terminal and in Markdown, with a ratio in brackets.
    TextWith(&'static str, fn(&Seen<'_>) -> Option<f64>),
    /// In the report's page.
    Page(&'static str),
    /// In `samples.csv` and in the page's table of samples.
    Samples(&'static str, fn(&Sample) -> String),
}

/// An arm and its figures, as a table reads it.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) workload: &'a WorkloadResult,
    pub(crate) arm: &'a ArmResult,
    pub(crate) summary: &'a Summary,
}

/// All columns, in the order of every table. The arm's name precedes them.
pub(crate) const COLUMNS: &[Column] = &[
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::Whole(|seen| seen.summary.cold_wall_ns),
        shown: &[Shown::TextWith("cold (ratio)", |seen| Some(seen.summary.cold_ratio?.median)), Shown::Page("cold")],
    },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Ratio(|seen| seen.summary.cold_ratio),
        shown: &[Shown::Page("cold ratio")],
    },
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::Whole(|seen| view::alone_median(seen.arm, |proof| Some(proof.sample.wall_ns))),
        shown: &[
            Shown::TextWith("first proof alone (ratio)", |seen| {
                view::alone_ratio(seen.workload, seen.arm).map(|ratio| ratio.median)
            }),
            Shown::Page("first proof alone"),
        ],
    },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Ratio(|seen| view::alone_ratio(seen.workload, seen.arm)),
        shown: &[Shown::Page("first proof alone, ratio")],
    },
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::Whole(|seen| seen.summary.warm_wall_ns),
        shown: &[
            Shown::Text("{warm}"),
            Shown::Page("{warm}"),
            Shown::Samples("wall_ns", |sample| sample.wall_ns.to_string()),
        ],
    },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Ratio(|seen| seen.summary.wall_ratio),
        shown: &[Shown::Text("ratio to {baseline} [95%]"), Shown::Page("{warm} ratio to {baseline}")],
    },
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::Whole(|seen| view::latency_ns(seen.workload, seen.arm, 0.95)),
        shown: &[Shown::Text("p95"), Shown::Page("p95")],
    },
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::Whole(|seen| view::latency_ns(seen.workload, seen.arm, 1.0)),
        shown: &[Shown::Text("worst"), Shown::Page("worst")],
    },
    Column { unit: Unit::Words, cell: Cell::Verdict, shown: &[Shown::Text("verdict"), Shown::Page("verdict")] },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Ratio(|seen| seen.summary.cpu_ratio),
        shown: &[Shown::Text("CPU ratio [95%]"), Shown::Page("CPU ratio")],
    },
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::OfProofs,
        shown: &[Shown::Samples("user_ns", |sample| sample.user_ns.to_string())],
    },
    Column {
        unit: Unit::Nanoseconds,
        cell: Cell::Whole(|seen| seen.summary.warm_sys_ns.filter(|_| seen.workload.timed != Timed::Proofs)),
        shown: &[
            Shown::Text("kernel time"),
            Shown::Page("kernel time"),
            Shown::Samples("sys_ns", |sample| sample.sys_ns.to_string()),
        ],
    },
    Column {
        unit: Unit::Count,
        cell: Cell::Warm(|sample| Some(sample.minflt)),
        shown: &[
            Shown::Text("minor faults"),
            Shown::Page("minor faults"),
            Shown::Samples("minflt", |sample| sample.minflt.to_string()),
        ],
    },
    Column {
        unit: Unit::Count,
        cell: Cell::Warm(|sample| sample.tlb_shootdowns),
        shown: &[
            Shown::Text("TLB shootdowns"),
            Shown::Page("TLB shootdowns"),
            Shown::Samples("tlb_shootdowns", |sample| {
                sample.tlb_shootdowns.map_or_else(String::new, |count| count.to_string())
            }),
        ],
    },
    Column {
        unit: Unit::Count,
        cell: Cell::Whole(|seen| seen.summary.warm_system_calls),
        shown: &[Shown::Page("system calls")],
    },
    Column {
        unit: Unit::Bytes,
        cell: Cell::OfProofs,
        shown: &[Shown::Samples("rss_bytes", |sample| sample.rss_bytes.to_string())],
    },
    Column {
        unit: Unit::Bytes,
        cell: Cell::Whole(|seen| seen.summary.peak_rss_bytes),
        shown: &[
            Shown::TextWith("peak RSS (ratio)", |seen| seen.summary.peak_rss_ratio),
            Shown::Page("peak RSS"),
            Shown::Samples("peak_rss_bytes", |sample| sample.peak_rss_bytes.to_string()),
        ],
    },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Part(|seen| view::peak_ratio(seen.workload, seen.arm)),
        shown: &[Shown::Page("ratio")],
    },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Part(|seen| view::peak_to_best_peer(seen.workload, seen.arm)),
        shown: &[Shown::Page("by best peer's")],
    },
    Column { unit: Unit::Ratio, cell: Cell::Part(|seen| view::peak_spread(seen.arm)), shown: &[Shown::Page("spread")] },
    Column {
        unit: Unit::Ratio,
        cell: Cell::Part(|seen| {
            let live = seen.workload.live_peak_bytes.filter(|live| *live > 0)?;
            Some(seen.summary.peak_rss_bytes? as f64 / live as f64)
        }),
        shown: &[Shown::Page("peak / live")],
    },
    Column {
        unit: Unit::Bytes,
        cell: Cell::Whole(|seen| seen.summary.resting_rss_bytes.filter(|_| seen.workload.timed.rests())),
        shown: &[Shown::Text("resting RSS"), Shown::Page("resting RSS")],
    },
    Column {
        unit: Unit::Bytes,
        cell: Cell::Whole(|seen| view::alone_median(seen.arm, |proof| proof.rss_after_1_s_bytes)),
        shown: &[Shown::Text("RSS after 1 s"), Shown::Page("RSS after 1 s")],
    },
    Column {
        unit: Unit::Bytes,
        cell: Cell::Whole(|seen| view::alone_median(seen.arm, |proof| proof.rss_after_10_s_bytes)),
        shown: &[Shown::Text("RSS after 10 s"), Shown::Page("RSS after 10 s")],
    },
    Column {
        unit: Unit::ByteSeconds,
        cell: Cell::Whole(|seen| seen.summary.warm_byte_seconds),
        shown: &[
            Shown::TextWith("GB s", |seen| {
                view::byte_seconds_ratio(seen.workload, seen.arm).filter(|_| seen.workload.timed == Timed::Slots)
            }),
            Shown::Page("GB s"),
        ],
    },
    Column {
        unit: Unit::Words,
        cell: Cell::OfProofs,
        shown: &[Shown::Samples("verified", |sample| sample.verified.to_string())],
    },
];

/// Each column with a place for which `heading` returns a value, together with that value.
pub(crate) fn shown<T>(heading: impl Fn(&'static Shown) -> Option<T>) -> impl Iterator<Item = (&'static Column, T)> {
    COLUMNS.iter().filter_map(move |column| Some((column, column.shown.iter().find_map(&heading)?)))
}

/// The columns of `samples.csv`: each name, and the function that formats its cells.
pub(crate) fn of_samples() -> impl Iterator<Item = (&'static str, fn(&Sample) -> String)> {
    let columns = shown(|place| match place {
        Shown::Samples(name, value) => Some((*name, *value)),
        _ => None,
    });
    columns.map(|(_, named)| named)
}

/// The cells of one proof in `samples.csv`.
pub(crate) fn of_proof(proof: &Proof) -> impl Iterator<Item = String> {
    of_samples().map(|(_, value)| value(&proof.sample))
}

/// The shown columns in which `workload` has a figure. An arm that failed has no figures, so it keeps no column.
pub(crate) fn filled<T>(
    workload: &WorkloadResult,
    place: impl Fn(&'static Shown) -> Option<T>,
) -> impl Iterator<Item = (&'static Column, T)> {
    let seen = |arm| Some(Seen { workload, arm, summary: view::figures(arm)? });
    let seen: Vec<_> = workload.arms.iter().filter_map(seen).collect();
    let is_filled = move |column: &Column| seen.iter().any(|seen| column.text(seen).is_some());
    // The verdict column always has text, because it also shows the outcomes of arms without figures.
    shown(place).filter(move |(column, _)| matches!(column.cell, Cell::Verdict) || is_filled(column))
}

/// The text of a heading for `workload`.
pub(crate) fn heading(heading: &str, workload: &WorkloadResult) -> String {
    workload.timed.heading(heading).replace("{baseline}", &workload.baseline)
}

impl Column {
    /// The arm's cell as plain text; `None` if the arm has no such figure.
    pub(crate) fn text(&self, seen: &Seen<'_>) -> Option<String> {
        match self.cell {
            Cell::Warm(figure) => view::warm_median(seen.arm, figure).map(|number| self.unit.text(number)),
            Cell::Whole(figure) => figure(seen).map(|number| self.unit.text(number)),
            Cell::Part(figure) => figure(seen).map(|part| format!("{part:.2}")),
            Cell::Ratio(figure) => figure(seen).map(|ratio| format::ratio(&ratio)),
            Cell::Verdict => Some(view::verdict(seen.workload, seen.arm, seen.summary)),
            Cell::OfProofs => None,
        }
    }

    /// The arm's ratio, if the column shows ratios with intervals.
    pub(crate) fn ratio(&self, seen: &Seen<'_>) -> Option<Ratio> {
        match self.cell {
            Cell::Ratio(figure) => figure(seen),
            _ => None,
        }
    }

    /// The arm's verdict, if this is the verdict column.
    pub(crate) fn verdict(&self, seen: &Seen<'_>) -> Option<Verdict> {
        seen.summary.verdict.filter(|_| matches!(self.cell, Cell::Verdict))
    }
}

impl Unit {
    fn text(self, number: u64) -> String {
        match self {
            Self::Nanoseconds => format::time(number),
            Self::Bytes => format::bytes(number),
            Self::ByteSeconds => format::gigabyte_seconds(number),
            Self::Count | Self::Ratio | Self::Words => format::count(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Two columns with one heading are indistinguishable. A column shown nowhere is measured for nothing.
    #[test]
    fn every_column_is_shown_and_no_place_has_a_heading_twice() {
        let mut seen = BTreeSet::new();
        for column in COLUMNS {
            assert!(!column.shown.is_empty());
            for place in column.shown {
                let (where_shown, heading) = match place {
                    Shown::Text(heading) | Shown::TextWith(heading, _) => ("text", heading),
                    Shown::Page(heading) => ("page", heading),
                    Shown::Samples(heading, _) => ("samples", heading),
                };
                assert!(seen.insert((where_shown, *heading)), "{where_shown}: {heading}");
            }
        }
    }

    /// Readers of samples.csv rely on the names for the units.
    #[test]
    fn columns_of_samples_carry_their_unit() {
        for column in COLUMNS {
            for place in column.shown {
                let Shown::Samples(name, _) = place else { continue };
                let unit = match column.unit {
                    Unit::Nanoseconds => "_ns",
                    Unit::Bytes => "_bytes",
                    _ => "",
                };
                assert!(name.ends_with(unit), "{name}");
            }
        }
    }

    /// Scripts read samples.csv by these names.
    #[test]
    fn samples_keep_their_names() {
        let names: Vec<_> = of_samples().map(|(name, _)| name).collect();
        let known = ["wall_ns", "user_ns", "sys_ns", "minflt", "rss_bytes", "peak_rss_bytes", "verified"];
        assert!(known.iter().all(|name| names.contains(name)), "{names:?}");
    }
}
