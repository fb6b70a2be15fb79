//! A workload's row in a summary.

use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::summary::Summary;
use crate::results::view;
use anyhow::Context;

/// The arm that a summary compares with its baseline.
const OURS: &str = "zk-alloc";

/// A workload with the figures of the baseline and of our arm.
pub(super) struct Row<'a> {
    /// The prover, if the run has only this workload.
    pub(super) prover: Option<&'a str>,
    pub(super) workload: &'a WorkloadResult,
    pub(super) before: &'a Summary,
    pub(super) ours: &'a Summary,
    /// The peer with the fastest warm proofs, with its figures; `None` where there is none but glibc.
    pub(super) peer: Option<(&'a str, &'a Summary)>,
}

impl<'a> Row<'a> {
    pub(super) fn of(run: &'a Run, workload: &'a WorkloadResult) -> anyhow::Result<Self> {
        let summary = |label: &str| {
            let arm = workload.arms.iter().find(|arm: &&ArmResult| arm.label == label);
            arm.and_then(|arm| arm.summary.as_ref())
                .with_context(|| format!("{} has no figures of {label}", workload.workload))
        };
        let prover = (run.workloads.len() == 1).then_some(run.prover.as_str());
        let peers = workload.arms.iter().filter(|arm| !view::is_ours(arm) && !view::is_baseline(workload, arm));
        let figures = peers.filter_map(|arm| Some((arm.label.as_str(), view::figures(arm)?)));
        let peer = figures.min_by_key(|(_, figures)| figures.warm_wall_ns.unwrap_or(u64::MAX));
        Ok(Self { prover, workload, before: summary(&workload.baseline)?, ours: summary(OURS)?, peer })
    }

    /// The row's name without its size: the prover's name if the run has only this workload, otherwise the workload's.
    pub(super) fn short_name(&self) -> &str {
        self.prover.unwrap_or(&self.workload.workload)
    }

    /// The row's name with its size.
    pub(super) fn name(&self) -> String {
        format!("{} 2^{}", self.short_name(), self.workload.log_rows)
    }
}
