//! What a run leaves behind, and what follows from it by arithmetic.
//!
//! ```text
//! view     a run as its readers look at it        samples  samples.csv
//! summary  samples -> figures                     record   result.json
//! stats    ratios and intervals, pure             format   quantities and outcomes in words
//! ```

pub(crate) mod format;
pub(crate) mod record;
pub(crate) mod samples;
pub(crate) mod stats;
pub(crate) mod summary;
pub(crate) mod view;
