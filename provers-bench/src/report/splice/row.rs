//! A workload in a summary.

use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::summary::Summary;
use anyhow::Context;

/// The allocator that a summary compares with its baseline.
const OURS: &str = "zk-alloc";

/// A workload with glibc's figures and ours.
pub(super) struct Row<'a> {
    /// The prover, where the workload is its only one.
    pub(super) prover: Option<&'a str>,
    pub(super) workload: &'a WorkloadResult,
    pub(super) before: &'a Summary,
    pub(super) ours: &'a Summary,
}

impl<'a> Row<'a> {
    pub(super) fn of(run: &'a Run, workload: &'a WorkloadResult) -> anyhow::Result<Self> {
        let summary = |label: &str| {
            let arm = workload.arms.iter().find(|arm: &&ArmResult| arm.label == label);
            arm.and_then(|arm| arm.summary.as_ref())
                .with_context(|| format!("{} has no figures of {label}", workload.workload))
        };
        let prover = (run.workloads.len() == 1).then_some(run.prover.as_str());
        Ok(Self { prover, workload, before: summary(&workload.baseline)?, ours: summary(OURS)? })
    }

    /// The workload's name without its size; that of its prover says more where it is the only one.
    pub(super) fn short_name(&self) -> &str {
        self.prover.unwrap_or(&self.workload.workload)
    }

    /// The same with its size.
    pub(super) fn name(&self) -> String {
        format!("{} 2^{}", self.short_name(), self.workload.log_rows)
    }
}
