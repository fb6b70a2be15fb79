//! `samples.csv`: one row per proof. Each row is written as soon as it is measured, so a later failure loses none of
//! them.

use crate::results::columns;
use crate::results::proof::Proof;
use anyhow::Context;
use std::fs::File;
use std::path::Path;

/// Columns for a proof's place in the run; its figures follow.
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

    /// Adds a row and flushes it to the kernel.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Counters, tests::sample};
    use std::fs;

    /// A row under the wrong header would be read as other figures.
    #[test]
    fn the_header_comes_once_and_every_proof_is_a_row_beneath_it() {
        let folder = std::env::temp_dir().join(format!("prove-bench-samples-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut log = SampleLog::create(&folder, "r".into()).unwrap();
        let proof = Proof { process: 1, round: 2, order: 3, byte_seconds: None, sample: sample(7, Counters::new()) };
        log.append("keccak", 12, 4, "glibc", &proof).unwrap();
        log.append("keccak", 12, 4, "glibc", &proof).unwrap();
        let text = fs::read_to_string(folder.join("samples.csv")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("run,workload,log_rows,threads,arm,process,round,order,wall_ns,"), "{text}");
        assert!(lines[1].starts_with("r,keccak,12,4,glibc,1,2,3,7,") && lines[1] == lines[2], "{text}");
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count(), "{text}");
    }
}
