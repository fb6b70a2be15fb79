//! The records of a run, and figures computed from them.
//!
//! - `columns`: table columns of arms and proofs, and samples.csv
//! - `view`: a run as its readers look at it
//! - `format`: quantities and outcomes in words
//! - `record`: result.json
//! - `summary`: from proofs to figures
//! - `proof`: a sample and its place in the run
//! - `stats`: ratios and intervals, pure
//! - `timed`: the kind of a sample

pub(crate) mod columns;
pub(crate) mod format;
pub(crate) mod proof;
pub(crate) mod record;
pub(crate) mod stats;
pub(crate) mod summary;
pub(crate) mod timed;
pub(crate) mod view;
