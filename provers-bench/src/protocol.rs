//! The messages between driver and child: one JSON value a line. Requests go to the child's stdin, and replies to its
//! original stdout.

pub(crate) mod profiles;
pub(crate) mod records;

use crate::machine::BuildInfo;
use crate::sample::Sample;
use crate::workloads::Concurrent;
use serde::{Deserialize, Serialize};

/// A message from the driver.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Comes first: set the workload up. The answer is [`Reply::Ready`].
    Setup {
        /// Name of the arm in this run. An allocator that is listed twice has two names.
        arm: String,
        prover: String,
        workload: String,
        log_rows: u32,
        #[serde(default)]
        concurrent: Concurrent,
        /// Settings that must be in force, as name and value in the allocator's own terms.
        requires: Vec<(String, String)>,
        /// The offset within a page, in bytes, where the stacks of the prover's threads begin. All arms of a round
        /// share it.
        stack_bytes: u16,
    },
    /// Prove and verify once. The answer is [`Reply::Proved`].
    Prove { round: u32, seed: u64 },
    /// Replay recorded allocations, without a prover. The answer is [`Reply::Replayed`].
    Replay {
        /// The file with the allocations.
        script: String,
        shape: Shape,
        /// As in `Setup`.
        requires: Vec<(String, String)>,
    },
}

/// A message from a child. The child exits when its stdin ends.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub(crate) enum Reply {
    Ready(Identity),
    Proved {
        sample: Sample,
        /// Why the verifier refused the proof.
        refusal: Option<String>,
    },
    Replayed {
        identity: Identity,
        replayed: Replayed,
    },
    /// The workload could not be set up, or could not prove; the allocations could not be replayed.
    Failed {
        reason: String,
    },
}

/// The description that an arm gives of itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Identity {
    pub(crate) allocator: String,
    pub(crate) version: String,
    /// Allocator settings that the process found in its environment, as `NAME=value`.
    pub(crate) settings: Vec<String>,
    /// Settings that the allocator itself confirmed, as `name=value`.
    #[serde(default)]
    pub(crate) confirmed: Vec<String>,
    /// Whether `peak_rss_bytes` is the peak of one proof; otherwise it is the peak of the process.
    pub(crate) peak_is_per_proof: bool,
    pub(crate) build: BuildInfo,
}

/// Facts that the replaying process needs before it reads the records.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Shape {
    pub(crate) records: usize,
    /// Block numbers are below this.
    pub(crate) blocks: usize,
    /// Threads are numbered from 1 to this.
    pub(crate) threads: usize,
    /// The record after which the most bytes are alive.
    pub(crate) peak_at: usize,
}

/// The result of a replay. Resident memory excludes memory that the process had before its first operation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Replayed {
    /// The replay, measured like a proof; `rss_bytes` is the memory that remains after everything was freed.
    pub(crate) sample: Sample,
    pub(crate) rss_at_live_peak_bytes: u64,
    /// Resident memory after the allocator released its free memory; `None` if it was not asked to.
    pub(crate) rss_released_bytes: Option<u64>,
}

/// A message as one line, including the line end.
pub(crate) fn line<T: Serialize>(message: &T) -> serde_json::Result<String> {
    Ok(serde_json::to_string(message)? + "\n")
}
