//! A workload in a summary.

use crate::results::record::{ArmResult, WorkloadResult};
use crate::results::summary::Summary;
use anyhow::Context;

/// The allocator that a summary compares with its baseline.
const OURS: &str = "zk-alloc";

/// A workload with glibc's figures and ours.
pub(super) struct Row<'a> {
    pub(super) workload: &'a WorkloadResult,
    pub(super) before: &'a Summary,
    pub(super) ours: &'a Summary,
}

impl<'a> Row<'a> {
    pub(super) fn of(workload: &'a WorkloadResult) -> anyhow::Result<Self> {
        let summary = |label: &str| {
            let arm = workload.arms.iter().find(|arm: &&ArmResult| arm.label == label);
            arm.and_then(|arm| arm.summary.as_ref())
                .with_context(|| format!("{} has no figures of {label}", workload.workload))
        };
        Ok(Self { workload, before: summary(&workload.baseline)?, ours: summary(OURS)? })
    }

    /// The workload's name as a heading has it: with its size.
    pub(super) fn name(&self) -> String {
        format!("{} 2^{}", self.workload.workload, self.workload.log_rows)
    }
}
