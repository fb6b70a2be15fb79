//! A measured proof: its figures and its place in the run.

use crate::sample::Sample;
use serde::{Deserialize, Serialize};

/// A sample and its place in the run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Proof {
    /// The arm's process that made it, from 0. All arms restart together between rounds.
    pub(crate) process: u32,
    /// 0 is the cold proof of a fresh process. Warm rounds are numbered from 1 across all processes.
    pub(crate) round: u32,
    /// Place of the arm in this round, from 0.
    pub(crate) order: u32,
    /// Resident memory summed over the time of the proof, in byte seconds; `None` if it was not sampled.
    #[serde(default)]
    pub(crate) byte_seconds: Option<u64>,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

/// The first proof of a process that is alone on the machine, after a pause.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct AloneProof {
    /// Number of the pass, from 0. Every arm proves once in a pass.
    pub(crate) pass: u32,
    /// Place of the arm in its pass, from 0.
    pub(crate) order: u32,
    /// Resident memory after one idle second.
    pub(crate) rss_after_1_s_bytes: Option<u64>,
    /// Resident memory after ten idle seconds.
    pub(crate) rss_after_10_s_bytes: Option<u64>,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

impl Proof {
    /// Whether it is the first proof of its process.
    pub(crate) fn is_cold(&self) -> bool {
        self.round == 0
    }

    pub(crate) fn is_warm(&self) -> bool {
        !self.is_cold()
    }
}
