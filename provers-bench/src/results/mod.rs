//! The record of a run, and the results computed from it.
//!
//! - `columns`: table columns of arms and proofs, and samples.csv
//! - `view`: which arms are ours or the baseline, and values that reports derive from a run
//! - `format`: quantities and outcomes in words
//! - `record`: result.json: runs, proofs, and their summaries
//! - `predict`: memory and time at a larger size, predicted from smaller sizes
//! - `stats`: ratios and intervals, in pure functions

pub(crate) mod columns;
pub(crate) mod format;
mod predict;
pub(crate) mod record;
pub(crate) mod stats;
pub(crate) mod view;

pub(crate) use columns::SampleLog;
pub(crate) use predict::*;
pub(crate) use record::*;
pub(crate) use stats::*;
