//! The records of a run, and figures computed from them.
//!
//! - `columns`: table columns of arms and proofs, and samples.csv
//! - `view`: the roles of arms, and figures that reports derive from a run
//! - `format`: quantities and outcomes in words
//! - `record`: result.json: runs, proofs, and the figures computed from them
//! - `predict`: memory and time of a larger size, from smaller ones
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
