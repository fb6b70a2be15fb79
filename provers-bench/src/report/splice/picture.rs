//! The picture of a summary: time against memory, for each workload and each allocator.

use super::row::Row;
use crate::report::charts;

/// Its path in the repository.
pub(super) const PICTURE: &str = "docs/results.svg";

/// The picture as SVG; empty if there is nothing to compare.
pub(super) fn picture(rows: &[Row<'_>]) -> String {
    let workloads: Vec<_> = rows.iter().map(|row| (row.short_name().to_owned(), row.workload)).collect();
    charts::time_and_memory(&workloads).map_or_else(String::new, |chart| chart.picture())
}
