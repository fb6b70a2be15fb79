//! What the samples of a workload are of, and the words for it.

use serde::{Deserialize, Serialize};

/// What was timed.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Timed {
    /// Proofs within processes of the harness's own: a cold one, and warm ones after it.
    #[default]
    Proofs,
    /// Whole runs of a command, none of which is warmer than another.
    Runs,
    /// Intervals between lines of a command's output: a cold one in each run, and warm ones after it.
    Intervals,
}

impl Timed {
    /// One of them.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Proofs => "proof",
            Self::Runs => "run",
            Self::Intervals => "interval",
        }
    }

    /// One of them, in "so many page faults a proof".
    pub(crate) fn each(self) -> &'static str {
        match self {
            Self::Proofs => "a proof",
            Self::Runs => "a run",
            Self::Intervals => "an interval",
        }
    }

    /// Those that a verdict is on.
    pub(crate) fn warm(self) -> &'static str {
        match self {
            Self::Proofs => "warm proofs",
            Self::Runs => "runs",
            Self::Intervals => "warm intervals",
        }
    }

    /// A heading of a table, in which `{warm}` stands for the time of those.
    pub(crate) fn heading(self, heading: &str) -> String {
        heading.replace("{warm}", if self == Self::Runs { "time" } else { "warm" })
    }

    /// A command's, and no prover's.
    pub(crate) fn is_of_command(self) -> bool {
        self != Self::Proofs
    }

    /// Whether the process goes on after a sample, so that there is memory at rest.
    pub(crate) fn rests(self) -> bool {
        self != Self::Runs
    }
}
