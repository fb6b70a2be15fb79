//! What a run leaves behind, and what follows from it by arithmetic.
//!
//! ```text
//! samples  samples.csv                            columns  what tables show of an arm, and of a proof
//! view     a run as its readers look at it
//! format   quantities and outcomes in words       record   result.json
//! summary  proofs -> figures                      proof    a sample and its place in the run
//! stats    ratios and intervals, pure             timed    what a sample is of
//! ```

pub(crate) mod columns;
pub(crate) mod format;
pub(crate) mod proof;
pub(crate) mod record;
pub(crate) mod samples;
pub(crate) mod stats;
pub(crate) mod summary;
pub(crate) mod timed;
pub(crate) mod view;
