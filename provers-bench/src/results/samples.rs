//! `samples.csv`: one row a proof, written as soon as it is measured, so that no failure loses what came before it.

use crate::plan::Point;
use crate::results::proof::Proof;
use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::path::Path;

/// The open file.
pub(crate) struct SampleLog {
    run: String,
    writer: csv::Writer<File>,
}

/// A row; the fields are the header, in this order.
#[derive(Serialize)]
struct Row<'a> {
    run: &'a str,
    workload: &'a str,
    log_rows: u32,
    threads: usize,
    arm: &'a str,
    process: u32,
    round: u32,
    order: u32,
    wall_ns: u64,
    user_ns: u64,
    sys_ns: u64,
    minflt: u64,
    rss_bytes: u64,
    peak_rss_bytes: u64,
    verified: bool,
}

impl SampleLog {
    /// Creates `samples.csv` in the folder of the run called `run`.
    pub(crate) fn create(folder: &Path, run: String) -> anyhow::Result<Self> {
        let path = folder.join("samples.csv");
        let writer = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { run, writer })
    }

    /// Adds a row and hands it to the kernel.
    pub(crate) fn append(&mut self, point: Point, arm: &str, proof: &Proof) -> anyhow::Result<()> {
        let sample = &proof.sample;
        let row = Row {
            run: &self.run,
            workload: point.workload.spec.name,
            log_rows: point.workload.log_rows,
            threads: point.threads,
            arm,
            process: proof.process,
            round: proof.round,
            order: proof.order,
            wall_ns: sample.wall_ns,
            user_ns: sample.user_ns,
            sys_ns: sample.sys_ns,
            minflt: sample.minflt,
            rss_bytes: sample.rss_bytes,
            peak_rss_bytes: sample.peak_rss_bytes,
            verified: sample.verified,
        };
        self.writer.serialize(row).context("cannot write a sample")?;
        self.writer.flush().context("cannot write a sample")
    }
}
