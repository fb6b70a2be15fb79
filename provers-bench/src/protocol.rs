//! What driver and child say to each other: one JSON value a line, requests on the child's stdin, replies on what was
//! its stdout.

pub(crate) mod records;

use crate::machine::build_info::BuildInfo;
use crate::sample::Sample;
use serde::{Deserialize, Serialize};

/// From the driver.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// First of all: set the workload up. Answered by [`Reply::Ready`].
    Setup {
        /// Name of the arm in this run, which an allocator listed twice has two of.
        arm: String,
        prover: String,
        workload: String,
        log_rows: u32,
        /// Settings that must be in force, as name and value in the allocator's own words.
        requires: Vec<(String, String)>,
        /// Where in a page the stacks of the prover's threads begin, in bytes: the same for all arms of a round.
        stack_bytes: u16,
    },
    /// Prove and verify once. Answered by [`Reply::Proved`].
    Prove { round: u32, seed: u64 },
    /// Replay recorded allocations, with no prover set up. Answered by [`Reply::Replayed`].
    Replay {
        /// The file that holds them.
        script: String,
        shape: Shape,
        /// As in a set-up.
        requires: Vec<(String, String)>,
    },
}

/// From a child. The end of its stdin ends it.
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

/// What an arm is, in its own words.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Identity {
    pub(crate) allocator: String,
    pub(crate) version: String,
    /// Allocator settings that the process found in its environment, as `NAME=value`.
    pub(crate) settings: Vec<String>,
    /// Settings that the allocator itself confirmed, as `name=value`.
    #[serde(default)]
    pub(crate) confirmed: Vec<String>,
    /// Whether `peak_rss_bytes` is one proof's; otherwise it is the process's.
    pub(crate) peak_is_per_proof: bool,
    pub(crate) build: BuildInfo,
}

/// What the replaying process must know before it reads the records.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Shape {
    pub(crate) records: usize,
    /// Numbers of blocks are below this.
    pub(crate) blocks: usize,
    /// Threads are numbered from 1 to this.
    pub(crate) threads: usize,
    /// The record after which most bytes are alive.
    pub(crate) peak_at: usize,
}

/// What a replay came to. Resident memory is without what the process had before its first operation.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Replayed {
    /// Of the replay as if it were a proof; `rss_bytes` is what was left when everything was freed.
    pub(crate) sample: Sample,
    /// Of the time on the clock, what operations took: the rest went by between two turns.
    pub(crate) operations_ns: u64,
    pub(crate) rss_at_live_peak_bytes: u64,
    pub(crate) rss_at_phase_ends_bytes: Vec<u64>,
    /// After the allocator was asked to give back what is free; `None` if it was not asked.
    pub(crate) rss_released_bytes: Option<u64>,
    /// The allocator's own words at the end of each phase and after all.
    pub(crate) reports: Vec<String>,
}

/// A message as one line, its end included.
pub(crate) fn line<T: Serialize>(message: &T) -> serde_json::Result<String> {
    Ok(serde_json::to_string(message)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::build_info;
    use crate::sample;
    use serde::de::DeserializeOwned;
    use std::fmt::Debug;

    fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: T) {
        let line = line(&message).unwrap();
        assert_eq!(line.find('\n'), Some(line.len() - 1), "one message, one line: {line:?}");
        assert_eq!(serde_json::from_str::<T>(&line).unwrap(), message);
    }

    /// A message that changes on its way, or spreads over two lines, would be read as garbage and fail its arm.
    #[test]
    fn messages_survive_the_pipe() {
        let text = "line one\nline two \"quoted\"".to_owned();
        let sample = sample::tests::sample(u64::MAX, [("served".to_owned(), u64::MAX)].into());
        let requires = || vec![("opt.thp".into(), "always".into())];
        let (arm, prover, workload) = ("a".into(), "p".into(), "w".into());
        survives(Request::Setup { arm, prover, workload, log_rows: 10, requires: requires(), stack_bytes: 48 });
        let shape = Shape { records: 1, blocks: 2, threads: 3, peak_at: 4 };
        survives(Request::Replay { script: "/s".into(), shape, requires: requires() });
        survives(Request::Prove { round: 0, seed: u64::MAX });
        survives(Reply::Proved { sample: sample.clone(), refusal: Some(text.clone()) });
        survives(Reply::Failed { reason: text.clone() });
        let build = build_info::current();
        let settings = vec!["ZK_ALLOC_THP=never".into()];
        let identity = Identity {
            allocator: text.clone(),
            version: "1".into(),
            settings,
            confirmed: Vec::new(),
            peak_is_per_proof: true,
            build,
        };
        survives(Reply::Ready(identity.clone()));
        let replayed = Replayed {
            sample,
            operations_ns: 1,
            rss_at_live_peak_bytes: 2,
            rss_at_phase_ends_bytes: vec![3, 4],
            rss_released_bytes: None,
            reports: vec![text],
        };
        survives(Reply::Replayed { identity, replayed });
    }
}
