//! `replay`, from the driver: each arm's binary replays the trace on real memory, and the driver prints the figures.

use super::script::Script;
use crate::arms::DEFAULT_SET;
use crate::machine::memory;
use crate::measure::arm_runner;
use crate::measure::binaries;
use crate::measure::interrupt::Interrupt;
use crate::measure::process::{ChildProcess, Failure, PATIENCE};
use crate::plan::Contestant;
use crate::plan::values::bytes;
use crate::protocol::records::{self, Header};
use crate::protocol::{Replayed, Request};
use crate::report::{self, Style};
use crate::results::{format, stats};
use anyhow::{Context, ensure};
use clap::Args;
use std::iter;
use std::path::{Path, PathBuf};

/// Options of `replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Traces written by `record`
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Comma-separated allocators to replay them under, or sets of allocators
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = DEFAULT_SET)]
    pub(super) allocators: Vec<String>,
    /// Leave out blocks while they are smaller than this [default: replay every recorded block]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    min_bytes: Option<u64>,
    /// Replays under each allocator, each in its own process; figures are medians
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// Replays every trace under every arm. Returns the tables, and whether an arm failed that is not known to fail.
pub(super) fn replay(contestants: &[Contestant], args: &ReplayArgs) -> anyhow::Result<(String, bool)> {
    // A mistake in the last name must not cost the earlier replays.
    for path in &args.traces {
        records::open(path).context("nothing was replayed")?;
    }
    let interrupt = Interrupt::on_signals()?;
    let folder = binaries::folder(contestants, &interrupt)?;
    let (mut text, mut failed) = (String::new(), false);
    for path in &args.traces {
        let trace = records::read(path)?;
        let min_bytes = args.min_bytes.unwrap_or(0).max(trace.header.min_bytes);
        let script = Script::of(&trace, min_bytes).with_context(|| path.display().to_string())?;
        check(path, &script, min_bytes)?;
        // The guard removes the file.
        let file = ScriptFile::write(&trace.header, &script)?;
        eprintln!("{}", trace.header.title);
        let mut rows: Vec<_> = contestants.iter().map(Row::new).collect();
        for round in 1..=args.rounds {
            for row in rows.iter_mut().filter(|row| row.failure.is_none()) {
                eprintln!("round {round} of {}: {}", args.rounds, row.contestant.label);
                match row.replay(&folder, &file.0, &script, &interrupt) {
                    Ok(()) => {}
                    Err(Failure::Interrupted) => return Err(Failure::Interrupted.into()),
                    Err(failure) => row.failure = Some(failure.to_string()),
                }
            }
        }
        failed |= rows.iter().any(|row| row.failure.is_some() && row.contestant.arm.known_to_fail.is_none());
        text += &format!("{}\n\n", table(&trace.header, min_bytes, &script, &rows));
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

/// A script in a temporary file. Dropping it removes the file.
struct ScriptFile(PathBuf);

impl ScriptFile {
    fn write(header: &Header, script: &Script) -> anyhow::Result<Self> {
        let file = Self(std::env::temp_dir().join(format!("prove-bench-{}.script", std::process::id())));
        records::write(&file.0, header, script.records.iter().copied())?;
        Ok(file)
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        // A file that cannot be removed stays in the folder for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An arm, with the results of its replays.
struct Row<'a> {
    contestant: &'a Contestant,
    replays: Vec<Replayed>,
    /// Settings that its process found in its environment.
    settings: Vec<String>,
    /// Why it takes no further part.
    failure: Option<String>,
}

impl<'a> Row<'a> {
    fn new(contestant: &'a Contestant) -> Self {
        Self { contestant, replays: Vec::new(), settings: Vec::new(), failure: None }
    }

    /// One more replay, in its own process.
    fn replay(&mut self, folder: &Path, file: &Path, script: &Script, interrupt: &Interrupt) -> Result<(), Failure> {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let arm = self.contestant.arm;
        let binary = folder.join(arm.binary);
        let mut child = ChildProcess::start(&binary, &owned(arm.environment), interrupt)?;
        let (path, requires) = (file.display().to_string(), owned(arm.confirms));
        let request = Request::Replay { script: path, shape: script.shape, requires };
        let (identity, replayed) = child.replay(&request, PATIENCE)?;
        arm_runner::check_build(&identity, &binary)?;
        child.finish()?;
        let broken = arm.holds.iter().find_map(|condition| condition.broken_by(&replayed.sample));
        self.settings = identity.settings;
        self.replays.push(replayed);
        broken.map_or(Ok(()), |reason| Err(Failure::Workload(reason)))
    }

    /// The median over the replays, as a number of `unit`s with so many digits. A dash if one of them lacks the figure
    /// or the arm failed.
    fn median(&self, unit: f64, digits: usize, figure: impl Fn(&Replayed) -> Option<u64>) -> String {
        let values: Option<Vec<_>> =
            self.replays.iter().map(|replay| figure(replay).map(|value| value as f64)).collect();
        let median = values.filter(|_| self.failure.is_none()).and_then(|values| stats::median(&values));
        median.map_or_else(|| "-".into(), |value| format!("{:.digits$}", value / unit))
    }

    fn cells(&self, live_peak_bytes: u64) -> Vec<String> {
        let mib = |figure: fn(&Replayed) -> Option<u64>| self.median(MIB, 1, figure);
        let peak = |replay: &Replayed| Some(replay.sample.peak_rss_bytes);
        let counter = |replay: &Replayed, name| replay.sample.counters.get(name).copied();
        vec![
            self.contestant.label.clone(),
            self.median(live_peak_bytes as f64, 3, peak),
            mib(peak),
            format!("{:.1}", live_peak_bytes as f64 / MIB),
            mib(|replay| Some(replay.rss_at_live_peak_bytes)),
            mib(|replay| Some(replay.sample.rss_bytes)),
            mib(|replay| replay.rss_released_bytes),
            self.median(MIB, 1, |replay| counter(replay, "overflow_bytes")),
            self.median(1.0, 0, |replay| counter(replay, "system_calls")),
            self.median(1.0, 0, |replay| Some(replay.sample.minflt)),
            self.median(1e9, 2, |replay| Some(replay.sample.wall_ns)),
        ]
    }

    /// Notes on the arm, each in a line: its failure, and its settings.
    fn notes(&self) -> String {
        let (label, arm) = (&self.contestant.label, self.contestant.arm);
        let known = arm.known_to_fail.map_or_else(String::new, |why| format!(" (known to fail: {why})"));
        let failed = self.failure.iter().map(|reason| format!("\n{label}: FAILED: {reason}{known}"));
        // Settings that the arm brings itself are not reported.
        let is_own = |setting: &str| arm.environment.iter().any(|(name, value)| setting == format!("{name}={value}"));
        let found = self.settings.iter().filter(|setting| !is_own(setting));
        failed.chain(found.map(|setting| format!("\n{label}: {setting} was set"))).collect()
    }
}

const MIB: f64 = 1048576.0;
const COLUMNS: &str = "allocator|peak RSS / live peak|peak RSS MiB|live peak MiB|RSS at live peak MiB|\
                       RSS after all frees MiB|after release() MiB|overflow MiB|system calls|minor faults|wall s";

/// The table of one trace as Markdown, with a row per arm, and without a final line break.
fn table(header: &Header, min_bytes: u64, script: &Script, rows: &[Row<'_>]) -> String {
    let header_row = COLUMNS.split('|').map(str::to_owned).collect();
    let lines: Vec<_> =
        iter::once(header_row).chain(rows.iter().map(|row| row.cells(script.live_peak_bytes))).collect();
    let replays = rows.iter().map(|row| row.replays.len()).max().unwrap_or(0);
    let title = format!(
        "{}; {} operations on {} threads, of {min_bytes} bytes and more; replays of each allocator: {replays}",
        header.title, script.shape.records, script.shape.threads
    );
    let lost = match header.lost {
        0 => String::new(),
        lost => format!("\n{lost} records were lost: other operations were replayed than there were."),
    };
    let notes: String = rows.iter().map(Row::notes).collect();
    let notes = if notes.is_empty() { notes } else { format!("\n{notes}") };
    format!("{title}{lost}\n\n{}{notes}", report::drawn(&lines, Style::Markdown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::protocol::records::Op;
    use crate::sample::{self, Sample};
    use crate::trace::script;

    fn replayed(peak_rss_bytes: u64) -> Replayed {
        let sample = Sample { peak_rss_bytes, ..sample::tests::sample(1, [("system_calls".to_owned(), 7)].into()) };
        Replayed { sample, rss_at_live_peak_bytes: 2, rss_released_bytes: None }
    }

    /// An arm that failed after some rounds must show no figures.
    #[test]
    fn an_arm_shows_medians_and_a_failed_one_only_why() {
        let trace = script::tests::phase(&[(Op::Alloc, 1, 1, 4 << 20)]);
        let script = Script::of(&trace, 64).unwrap();
        let contestants = plan::contestants(&["glibc".to_owned(), "zk-alloc".to_owned()]).unwrap();
        let mut rows: Vec<_> = contestants.iter().map(Row::new).collect();
        rows[0].replays = [8, 80, 6].map(|mib| replayed(mib << 20)).into();
        rows[1].replays = vec![replayed(1)];
        rows[1].failure = Some("died of SIGSEGV".into());
        let text = table(&trace.header, 64, &script, &rows);
        let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap();
        assert!(line("| glibc ").contains(" 2.000 |") && line("| glibc ").contains("8.0 |"), "{text}");
        assert!(!line("| zk-alloc ").contains("7"), "{text}");
        assert!(line("zk-alloc: FAILED").ends_with("died of SIGSEGV"), "{text}");
    }
}
