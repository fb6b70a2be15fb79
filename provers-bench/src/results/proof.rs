//! A proof as it was made: what was measured of it, and when.

use crate::sample::Sample;
use serde::{Deserialize, Serialize};

/// A sample and its place in the run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Proof {
    /// The arm's process that made it, from 0: arms are started again between rounds, all at once.
    pub(crate) process: u32,
    /// 0 is the cold proof of a fresh process; warm rounds are counted over all processes, from 1.
    pub(crate) round: u32,
    /// Place of the arm in this round, from 0.
    pub(crate) order: u32,
    /// Resident memory over the time of the proof, in byte seconds; `None` where nobody watched.
    #[serde(default)]
    pub(crate) byte_seconds: Option<u64>,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

/// The first proof of a process that is alone on the machine, after a pause.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct AloneProof {
    /// All arms prove once in a pass. From 0.
    pub(crate) pass: u32,
    /// Place of the arm in its pass, from 0.
    pub(crate) order: u32,
    /// Resident memory after one idle second.
    pub(crate) rss_after_1_s_bytes: Option<u64>,
    /// The same after ten.
    pub(crate) rss_after_10_s_bytes: Option<u64>,
    #[serde(flatten)]
    pub(crate) sample: Sample,
}

impl Proof {
    /// The first of its process.
    pub(crate) fn is_cold(&self) -> bool {
        self.round == 0
    }

    pub(crate) fn is_warm(&self) -> bool {
        !self.is_cold()
    }
}
