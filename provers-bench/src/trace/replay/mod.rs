//! Replays recorded allocations on real memory, from the driver: each arm's binary replays the trace, and the driver
//! collects the figures.
//!
//! - `table`: figures as text
//! - `script`: a trace prepared for the replay

mod script;
mod table;

use super::session::Interrupted;
use crate::machine::memory;
use crate::measure::arm_runner;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{ChildProcess, Failure};
use crate::plan::Contestant;
use crate::protocol::records::{self, Trace};
use crate::protocol::{Request, Shape};
use crate::results::format;
use anyhow::{Context, ensure};
use script::Script;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;
use table::Row;

/// Longest wait for one replay. No earlier time exists to derive a limit from.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A requested `replay`.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) traces: Vec<PathBuf>,
    pub(crate) contestants: Vec<Contestant>,
    /// Blocks are left out while they are smaller; `None` replays every recorded block.
    pub(crate) min_bytes: Option<u64>,
    /// Number of processes of each arm.
    pub(crate) rounds: u32,
    /// Show the allocators' own reports.
    pub(crate) verbose: bool,
}

/// Replays every trace under every arm. Returns the tables, and whether an arm failed that is not known to fail.
pub(crate) fn replay(job: &Replay) -> anyhow::Result<(String, bool)> {
    // A mistake in the last name must not cost the earlier replays.
    for path in &job.traces {
        records::open(path).context("nothing was replayed")?;
    }
    let interrupt = Interrupt::on_signals()?;
    let interrupted = || Interrupted("what was replayed is lost");
    let folder = binaries::folder(&job.contestants, &interrupt)?.ok_or_else(interrupted)?;
    let (mut text, mut failed) = (String::new(), false);
    for path in &job.traces {
        let trace = records::read(path)?;
        let min_bytes = job.min_bytes.unwrap_or(0).max(trace.header.min_bytes);
        let script = Script::of(&trace, min_bytes).with_context(|| path.display().to_string())?;
        check(path, &script, min_bytes)?;
        let file = ScriptFile::write(&trace, &script)?;
        eprintln!("{}", trace.header.title);
        let mut rows: Vec<_> = job.contestants.iter().map(Row::new).collect();
        for round in 1..=job.rounds {
            for row in rows.iter_mut().filter(|row| row.failure.is_none()) {
                match one(row, &folder, &file, script.shape, &interrupt) {
                    Ok(()) => {}
                    Err(Failure::Interrupted) => return Err(interrupted().into()),
                    Err(failure) => row.failure = Some(failure.to_string()),
                }
                eprintln!("round {round} of {}: {}", job.rounds, row.progress());
            }
        }
        failed |= rows.iter().any(|row| row.failure.is_some() && row.contestant.arm.known_to_fail.is_none());
        text += &format!("{}\n\n", table::table(&trace.header, min_bytes, &script, &rows, job.verbose));
    }
    Ok((text, failed))
}

/// Fails if the script is empty or does not fit into memory.
fn check(path: &Path, script: &Script, min_bytes: u64) -> anyhow::Result<()> {
    let named = path.display();
    ensure!(
        !script.records.is_empty(),
        "{named} holds no block of {min_bytes} bytes or more: there is nothing to replay"
    );
    let needed = script.live_peak_bytes + size_of_val(&script.records[..]) as u64;
    let available = memory::available_bytes().unwrap_or(u64::MAX);
    let [needs, has] = [needed, available].map(format::bytes);
    ensure!(needed <= available, "{named} needs {needs} of memory at the least, and {has} are available: not replayed");
    Ok(())
}

/// One replay under one arm, in its own process.
fn one(
    row: &mut Row<'_>,
    folder: &Path,
    script: &ScriptFile,
    shape: Shape,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let arm = row.contestant.arm;
    let binary = folder.join(arm.binary);
    let mut child = ChildProcess::start(&binary, &owned(arm.environment), interrupt)?;
    let script = script.0.display().to_string();
    let request = Request::Replay { script, shape, requires: owned(arm.confirms) };
    let (identity, replayed) = child.replay(&request, PATIENCE)?;
    arm_runner::check_build(&identity, &binary)?;
    child.finish()?;
    let broken = arm.holds.iter().find_map(|condition| condition.broken_by(&replayed.sample));
    row.settings = identity.settings;
    row.replays.push(replayed);
    broken.map_or(Ok(()), |reason| Err(Failure::Workload(reason)))
}

/// A script in a temporary file. Dropping it removes the file.
struct ScriptFile(PathBuf);

impl ScriptFile {
    fn write(trace: &Trace, script: &Script) -> anyhow::Result<Self> {
        let file = Self(env::temp_dir().join(format!("prove-bench-{}.script", process::id())));
        records::write(&file.0, &trace.header, script.records.iter().copied())?;
        Ok(file)
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        // A file that cannot be removed stays in the folder for temporary files.
        let _ = fs::remove_file(&self.0);
    }
}
