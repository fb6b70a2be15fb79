//! The kinds of sample that a workload has, and the words for them.

use serde::{Deserialize, Serialize};

/// The kind of thing that was timed.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Timed {
    /// Proofs in the harness's own processes: one cold proof, then warm ones.
    #[default]
    Proofs,
    /// Whole runs of a command; they are not split into cold and warm.
    Runs,
    /// Intervals between lines of a command's output: in each run, one cold interval, then warm ones.
    Intervals,
    /// Proofs at fixed times, with idle time in between.
    Slots,
}

impl Timed {
    /// The noun for one sample.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Proofs | Self::Slots => "proof",
            Self::Runs => "run",
            Self::Intervals => "interval",
        }
    }

    /// The noun with its article, as in "page faults a proof".
    pub(crate) fn each(self) -> &'static str {
        match self {
            Self::Proofs | Self::Slots => "a proof",
            Self::Runs => "a run",
            Self::Intervals => "an interval",
        }
    }

    /// The samples that decide the verdict.
    pub(crate) fn warm(self) -> &'static str {
        match self {
            Self::Proofs | Self::Slots => "warm proofs",
            Self::Runs => "runs",
            Self::Intervals => "warm intervals",
        }
    }

    /// Whether the samples come from a command and not from a prover.
    pub(crate) fn is_of_command(self) -> bool {
        matches!(self, Self::Runs | Self::Intervals)
    }

    /// Whether the process continues after a sample, so that resting memory can be measured.
    pub(crate) fn rests(self) -> bool {
        self != Self::Runs
    }
}
