//! The baseline file: the figures to hold, and the history of their changes with the reasons.

use super::figures::Figures;
use crate::machine::Machine;
use crate::results::record::{Run, WorkloadResult};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Changes whenever this code would misread an older file.
const SCHEMA: u32 = 1;

const HEADER: &str = "\
# The figures that `prove-bench check` holds zk-alloc to, and under [[blessed]] why they are what they are.
# Written by `prove-bench check --bless --reason \"...\"`: not by hand.

";

/// A baseline that cannot be used. Its message is one line with the file and the reason.
#[derive(Debug, thiserror::Error)]
#[error("the baseline {file} {reason}")]
pub(crate) struct Unusable {
    file: String,
    reason: String,
}

impl Unusable {
    pub(super) fn of(path: &Path, reason: impl Into<String>) -> Self {
        Self { file: path.display().to_string(), reason: reason.into() }
    }
}

/// The whole file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Baseline {
    schema: u32,
    /// Keyed by `prover/workload`.
    #[serde(default)]
    pub(super) workloads: BTreeMap<String, Entry>,
    /// Oldest first.
    #[serde(default)]
    blessed: Vec<Blessing>,
}

/// The figures of one workload, and the conditions that they depend on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    pub(super) log_rows: u32,
    pub(super) threads: usize,
    pub(super) machine: String,
    pub(super) profile: String,
    #[serde(flatten)]
    pub(super) figures: Figures,
}

/// One change of the figures.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Blessing {
    at: jiff::Timestamp,
    reason: String,
    commit: String,
    machine: String,
    kernel: String,
    rustc: String,
    workloads: Vec<String>,
}

impl Entry {
    pub(super) fn of(figures: Figures, result: &WorkloadResult, run: &Run) -> Self {
        Self {
            log_rows: result.log_rows,
            threads: result.threads,
            machine: name_of(&run.machine),
            profile: run.machine.build.profile.clone(),
            figures,
        }
    }

    /// Whether both come from the same machine and build profile, so that their times can be compared closely.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (&self.machine, &self.profile) == (&other.machine, &other.profile)
    }
}

impl Baseline {
    /// Reads the file. With `or_new`, a missing one is an empty baseline.
    pub(super) fn read(path: &Path, or_new: bool) -> Result<Self, Unusable> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|reason| Unusable::of(path, reason)),
            Err(error) if error.kind() == ErrorKind::NotFound && or_new => {
                Ok(Self { schema: SCHEMA, workloads: BTreeMap::new(), blessed: Vec::new() })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let how = "`prove-bench check --bless --reason \"...\"` makes it from this code";
                Err(Unusable::of(path, format!("does not exist: {how}")))
            }
            Err(error) => Err(Unusable::of(path, format!("cannot be read: {error}"))),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let in_a_line = |error: toml::de::Error| format!("is no baseline: {}", error.message().replace('\n', "; "));
        let table: toml::Table = text.parse().map_err(in_a_line)?;
        // The schema comes first: this code does not know the meaning of another schema.
        match table.get("schema").and_then(toml::Value::as_integer) {
            Some(schema) if schema == i64::from(SCHEMA) => {
                let baseline: Self = toml::from_str(text).map_err(in_a_line)?;
                let missing = |(key, entry): (&String, &Entry)| Some((key.clone(), entry.figures.missing()?));
                match baseline.workloads.iter().find_map(missing) {
                    Some((key, figure)) => Err(format!("is no baseline: it lacks the {figure} of {key}")),
                    None => Ok(baseline),
                }
            }
            Some(schema) => {
                Err(format!("has schema {schema}, and this is for schema {SCHEMA}: move it away and bless anew"))
            }
            None => Err("names no schema: move it away and bless anew".into()),
        }
    }

    pub(super) fn bless(&mut self, entries: Vec<(String, Entry)>, machine: &Machine, reason: &str) {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let changes = if machine.git_dirty == Some(true) { " with changes" } else { "" };
        self.blessed.push(Blessing {
            at: machine.started_at,
            reason: reason.to_owned(),
            commit: known(&machine.git_commit) + changes,
            machine: name_of(machine),
            kernel: known(&machine.kernel),
            rustc: machine.build.rustc.clone(),
            workloads: entries.iter().map(|(key, _)| key.clone()).collect(),
        });
        self.workloads.extend(entries);
    }

    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = toml::to_string(self).context("cannot express the baseline as TOML")?;
        fs::write(path, HEADER.to_owned() + &text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn name_of(machine: &Machine) -> String {
    format!("{}, {} cores", machine.cpu.as_deref().unwrap_or("unknown CPU"), machine.cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> String {
        Baseline::parse(text).expect_err(text)
    }

    /// A file of another schema may parse, although its figures mean something else.
    #[test]
    fn another_schema_is_refused_whatever_else_the_file_says() {
        assert!(mistake("schema = 99\nworkloads = 3").contains("schema 99"));
        assert!(mistake("").contains("no schema"));
        assert!(Baseline::parse("schema = 1").is_ok());
    }

    /// A figure that is misspelt or missing must not pass as one that holds.
    #[test]
    fn a_damaged_file_is_named_in_one_line() {
        let misspelt = "schema = 1\n[workloads.\"p/w\"]\nlog_rows = 3\nthreads = 2\nmachine = \"m\"\nprofile = \"p\"\nminor_fault = 3";
        for text in
            ["schema = ", "schema = 1\n[workloads.\"p/w\"]\nlog_rows = 3", "schema = 1\nworkload = {}", misspelt]
        {
            let message = mistake(text);
            assert!(message.starts_with("is no baseline: ") && message.lines().count() == 1, "{message}");
        }
    }
}
