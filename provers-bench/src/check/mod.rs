//! The gate: small workloads under glibc and zk-alloc in lockstep, held to the figures of a committed baseline.
//!
//! Figures that other processes cannot change (faults, system calls, escaped bytes, memory) fail the check by
//! themselves. Time fails it only if it is worse than the baseline by more than the noise of both runs and a tolerance.

mod baseline;
mod cli;
mod figures;
mod judge;
mod table;

pub(crate) use baseline::Unusable;
pub(crate) use cli::{Job, command, job};

use crate::machine::Machine;
use crate::measure::interrupt::Interrupt;
use crate::results::record::Run;
use crate::run;
use baseline::{Baseline, Entry};
use figures::Figures;
use std::path::{Path, PathBuf};
use table::Checked;

/// The baseline of a package, next to its `Cargo.toml`.
const FILE: &str = "baseline.toml";

/// How a check ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The comparison, and what to do about it.
    pub(crate) text: String,
    pub(crate) passed: bool,
    pub(crate) interrupted: bool,
}

/// A check with a usable baseline.
pub(crate) struct Gate<'a> {
    job: &'a Job,
    path: PathBuf,
    baseline: Baseline,
}

impl<'a> Gate<'a> {
    /// Reads the baseline, before anything is built or proved. The default is the baseline of the package in
    /// `package_folder`.
    pub(crate) fn open(job: &'a Job, package_folder: &Path) -> Result<Self, Unusable> {
        let path = job.baseline.clone().unwrap_or_else(|| package_folder.join(FILE));
        let baseline = match job.bless {
            Some(_) => Baseline::read_or_new(&path)?,
            None => {
                let baseline = Baseline::read(&path)?;
                job.held_by(&baseline).map_err(|reason| Unusable::of(&path, reason))?;
                baseline
            }
        };
        Ok(Self { job, path, baseline })
    }

    /// Runs every workload with the arms' binaries in `folder`, and judges or blesses the results.
    pub(crate) fn hold(mut self, folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        let mut checked = Vec::new();
        let mut machine = None;
        for item in &self.job.items {
            let run = run::run(&item.plan, folder, interrupt)?;
            if run.interrupted {
                let text = "interrupted: nothing was judged\n".into();
                return Ok(Outcome { text, passed: false, interrupted: true });
            }
            checked.push(self.judged(&item.key, &run));
            machine = Some(run.machine);
        }
        let mut passed = checked.iter().all(Checked::proved);
        let mut text = table::table(&checked) + "\n";
        let job = self.job;
        match (&job.bless, machine) {
            (Some(reason), Some(machine)) if passed => {
                self.bless(checked, &machine, reason)?;
                text += &format!("These figures are the baseline now, in {}: {reason}\n", self.path.display());
            }
            (Some(_), _) => text += "Nothing was blessed: every arm must prove.\n",
            (None, _) => {
                passed &= checked.iter().all(Checked::holds);
                text += &table::conclusion(&checked, passed);
            }
        }
        Ok(Outcome { text, passed, interrupted: false })
    }

    fn judged(&self, key: &str, run: &Run) -> Checked {
        let result = run.workloads.first().ok_or_else(|| "was not run".to_owned());
        let found = result.and_then(|result| {
            let now = Entry::of(Figures::of(result)?, result, run);
            let rows = judge::rows(self.baseline.workloads.get(key), &now, self.job.tolerance);
            Ok((now, rows))
        });
        Checked { key: key.to_owned(), found }
    }

    fn bless(&mut self, checked: Vec<Checked>, machine: &Machine, reason: &str) -> anyhow::Result<()> {
        if !self.job.restricted {
            // This also drops workloads that no longer exist.
            self.baseline.workloads.clear();
        }
        let entries = checked.into_iter().filter_map(|checked| Some((checked.key, checked.found.ok()?.0)));
        self.baseline.bless(entries.collect(), machine, reason);
        self.baseline.write(&self.path)
    }
}
