//! `samples.csv`: one row a proof, written as soon as it is measured, so that no failure loses what came before it.

use crate::results::columns;
use crate::results::proof::Proof;
use anyhow::Context;
use std::fs::File;
use std::path::Path;

/// Where a proof stands: before what was measured of it.
const PLACE: [&str; 8] = ["run", "workload", "log_rows", "threads", "arm", "process", "round", "order"];

/// The open file.
pub(crate) struct SampleLog {
    run: String,
    writer: csv::Writer<File>,
    has_header: bool,
}

impl SampleLog {
    /// Creates `samples.csv` in the folder of the run called `run`.
    pub(crate) fn create(folder: &Path, run: String) -> anyhow::Result<Self> {
        let path = folder.join("samples.csv");
        let writer = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { run, writer, has_header: false })
    }

    /// Adds a row and hands it to the kernel.
    pub(crate) fn append(
        &mut self,
        workload: &str,
        log_rows: u32,
        threads: usize,
        arm: &str,
        proof: &Proof,
    ) -> anyhow::Result<()> {
        let Proof { process, round, order, .. } = proof;
        let numbers = [log_rows.to_string(), threads.to_string()];
        let turn = [process, round, order].map(u32::to_string);
        let place = [self.run.as_str(), workload].map(str::to_owned).into_iter().chain(numbers);
        let row = place.chain([arm.to_owned()]).chain(turn).chain(columns::of_proof(proof));
        if !self.has_header {
            let header = PLACE.into_iter().chain(columns::of_samples().map(|(name, _)| name));
            self.writer.write_record(header).context("cannot write a sample")?;
            self.has_header = true;
        }
        self.writer.write_record(row).context("cannot write a sample")?;
        self.writer.flush().context("cannot write a sample")
    }
}
