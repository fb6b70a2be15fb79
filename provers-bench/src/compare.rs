//! Compares measurements with stored ones: a run with an earlier run (`compare`), or this code with the committed baseline of its provers
//! (`check`, the gate).
//!
//! The gate proves small workloads under glibc and zk-alloc in lockstep. Any measurement that other processes cannot change (faults, system
//! calls, escaped bytes, memory) can fail the gate by itself. Time fails the gate only if it exceeds the baseline by more than the noise of
//! both runs plus a tolerance.

use crate::arms;
use crate::machine::Machine;
use crate::measure::{self, Failure, Interrupt, binaries};
use crate::plan::{self, Plan, UsageError, percentage};
use crate::report::{self, Style};
use crate::results::{
    ArmResult, MIN_ROUNDS_FOR_VERDICT, Ratio, Run, WorkloadResult, format, live_peak_bytes, view, whole_median,
};
use crate::workloads::{Prover, WorkloadSpec};
use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The arm that the gate compares with the baseline, and the arm whose time and memory are the reference.
const GATED: &str = arms::OURS;
const REFERENCE: &str = arms::BASELINE;
/// Name of a package's baseline file, next to its `Cargo.toml`.
const FILE: &str = "baseline.toml";
/// Number of threads in the pool; fixed, because the measurements depend on it.
const THREADS: usize = 2;
/// The seed; fixed, so every check has the same inputs and the same order of arms.
const SEED: u64 = 1;
/// Allowed increase of the gate's time ratio, on top of both intervals. The intervals cover only the noise within each run, and even two
/// undisturbed runs may differ by this much.
const TOLERANCE: f64 = 0.05;
/// [`TOLERANCE`] for a baseline from another machine or build profile, where page faults take a different share of the time.
const TOLERANCE_ELSEWHERE: f64 = 0.15;

/// Options of `compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Earlier run
    #[arg(value_name = "RUN_A")]
    before: String,
    /// Later run
    #[arg(value_name = "RUN_B")]
    after: String,
    /// Allowed increase of the warm-time ratio, on top of the noise of both runs [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    tolerance: Option<f64>,
    /// Folder of the runs [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Options of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// File with the baseline [default: baseline.toml next to the package's Cargo.toml]
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Make the measurements of this run the new baseline; requires --reason
    #[arg(long, requires = "reason")]
    bless: bool,
    /// Why the measurements may change; recorded in the baseline's history
    #[arg(long, value_name = "TEXT", requires = "bless", value_parser = NonEmptyStringValueParser::new())]
    reason: Option<String>,
    /// Comma-separated workloads to check, each as NAME or PROVER/NAME [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Warm rounds; a verdict on time needs 6
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Allowed increase of the warm-time ratio, on top of the noise of both runs [default: 5%, or 15% on another machine or build profile]
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    tolerance: Option<f64>,
    /// Folder of the runs [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// One workload to check.
#[derive(Clone)]
struct Item {
    /// `prover/workload`.
    key: String,
    prover: &'static Prover,
    spec: &'static WorkloadSpec,
}

/// Checks the provers of a package against their baseline, which is in `folder` by default. The baseline is read before
/// anything is built or proved. Returns the comparison and what to do about it, and whether the check failed.
pub(crate) fn check(provers: &'static [Prover], args: &CheckArgs, folder: &Path) -> anyhow::Result<(String, bool)> {
    let items = args.items(provers)?;
    let is_restricted = !args.workloads.is_empty();
    let path = args.baseline.clone().unwrap_or_else(|| folder.join(FILE));
    let mut baseline = Baseline::read(&path, args.bless)?;
    if !args.bless {
        baseline.covers(&items, is_restricted).map_err(|reason| unusable(&path, &reason))?;
    }
    let interrupt = Interrupt::on_signals()?;
    let plans = items.iter().map(|item| args.plan(item)).collect::<Result<Vec<_>, _>>()?;
    // One build is enough, because the arms are the same for every workload.
    let arms = binaries::folder(&plans[0].contestants, &interrupt)?;
    let (mut compared, mut entries, mut machine) = (Vec::new(), Vec::new(), None);
    for (Item { key, .. }, plan) in items.into_iter().zip(&plans) {
        let run = measure::run(plan, &arms, &interrupt)?;
        if run.interrupted {
            measure::print("interrupted: nothing was judged\n");
            return Err(Failure::Interrupted.into());
        }
        let entry = entry(&run);
        let rows = entry.as_ref().map(|now| args.rows(baseline.workloads.get(&key), now)).map_err(Clone::clone);
        compared.push(Comparison { workload: key.clone(), arm: GATED.into(), rows });
        entries.extend(entry.map(|entry| (key, entry)));
        machine = Some(run.machine);
    }
    let mut passed = compared.iter().all(|comparison| comparison.rows.is_ok());
    let mut text = table(&compared);
    match (&args.reason, machine) {
        (Some(reason), Some(machine)) if passed => {
            if !is_restricted {
                // This also drops workloads that no longer exist.
                baseline.workloads.clear();
            }
            baseline.bless(entries, &machine, reason);
            baseline.write(&path)?;
            text += &format!("These figures are the baseline now, in {}: {reason}\n", path.display());
        }
        (Some(_), _) => text += "Nothing was blessed: every arm must prove.\n",
        (None, _) => {
            passed &= compared.iter().flat_map(|comparison| &comparison.rows).flatten().all(|row| row.excess.is_none());
            text += &conclusion(&compared, passed);
        }
    }
    Ok((text, !passed))
}

impl CheckArgs {
    /// Returns the workloads that these options select.
    fn items(&self, provers: &'static [Prover]) -> Result<Vec<Item>, UsageError> {
        let rounds = self.rounds;
        if self.bless && (rounds as usize) < MIN_ROUNDS_FOR_VERDICT {
            let message = format!("--bless takes {MIN_ROUNDS_FOR_VERDICT} rounds or more, not {rounds}");
            return Err(UsageError(message));
        }
        let of_prover = |prover: &'static Prover| {
            let item =
                move |spec: &'static WorkloadSpec| Item { key: format!("{}/{}", prover.name, spec.name), prover, spec };
            prover.workloads.iter().map(item)
        };
        let all: Vec<Item> = provers.iter().flat_map(of_prover).collect();
        if all.is_empty() {
            return Err(UsageError("there is nothing to check: this build has no prover".into()));
        }
        let find = |given: &String| {
            let found = all.iter().find(|item| item.key == *given || item.spec.name == given).cloned();
            found.ok_or_else(|| UsageError::unknown("workload", given, all.iter().map(|item| item.key.as_str())))
        };
        if self.workloads.is_empty() { Ok(all) } else { self.workloads.iter().map(find).collect() }
    }

    /// Plans the run that checks a workload.
    fn plan(&self, item: &Item) -> Result<Plan, UsageError> {
        let (name, log_rows, rounds) = (item.spec.name, item.spec.check_log_rows, self.rounds);
        let options = format!(
            "check --workloads {name} --log-rows {log_rows} --rounds {rounds} --threads {THREADS} --seed {SEED} \
             --allocators {REFERENCE},{GATED}"
        );
        let mut plan = plan::of_line(item.prover, &options)?;
        plan.args.measured.out.clone_from(&self.out);
        Ok(plan)
    }

    fn rows(&self, before: Option<&Entry>, now: &Entry) -> Vec<Row> {
        // Times from the same machine and build profile are compared with the smaller tolerance.
        let is_near = before.is_none_or(|one| (&one.machine, &one.profile) == (&now.machine, &now.profile));
        let tolerance = self.tolerance.unwrap_or(if is_near { TOLERANCE } else { TOLERANCE_ELSEWHERE });
        rows(before.map(|entry| &entry.figures), &now.figures, tolerance)
    }
}

/// Returns the baseline entry of a run in which both arms finished; otherwise, why there is none.
fn entry(run: &Run) -> Result<Entry, String> {
    let result = run.workloads.first().ok_or("was not run")?;
    let finished = |name: &str| {
        let arm = result.arms.iter().find(|arm| arm.arm == name).ok_or_else(|| format!("{name} took no part"))?;
        format::outcome(&arm.outcome).map_or(Ok(arm), |text| Err(format!("{name}: {text}")))
    };
    let gated = finished(GATED)?;
    finished(REFERENCE)?;
    let figures = Figures::of(gated).ok_or_else(|| format!("{GATED} has no figures"))?;
    if let Some(figure) = figures.missing() {
        return Err(format!("{GATED} does not report {figure}"));
    }
    Ok(Entry {
        log_rows: result.log_rows,
        threads: result.threads,
        machine: name_of(&run.machine),
        profile: run.machine.build.profile.clone(),
        figures,
    })
}

/// The measurements of one arm in one workload, or why there are none.
struct Comparison {
    workload: String,
    arm: String,
    rows: Result<Vec<Row>, String>,
}

/// Formats the comparisons as a table with a row for each measurement. Only the first row of an arm names the arm.
fn table(compared: &[Comparison]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for Comparison { workload, arm, rows } in compared {
        let cells = match rows {
            Ok(rows) => rows.iter().map(|row| row.cells.clone()).collect(),
            Err(_) => vec![["", "", "", "", "FAILED"].map(str::to_owned)],
        };
        let name = [workload.clone(), arm.clone()];
        let names = std::iter::once(name).chain(std::iter::repeat([const { String::new() }; 2]));
        lines.extend(names.zip(cells).map(|(name, cells)| name.into_iter().chain(cells).collect()));
    }
    let header = "workload|allocator|figure of the warm proofs|before|now|allowed|verdict";
    report::drawn(header, lines, Style::Markdown) + "\n\n"
}

/// Returns one line if the check passed. Otherwise lists the regressions, by how much each exceeds its limit, and how to accept them.
fn conclusion(compared: &[Comparison], passed: bool) -> String {
    if passed {
        return "All figures are within their limits.\n".into();
    }
    let mut text = String::new();
    for Comparison { workload, rows, .. } in compared {
        let reasons = match rows {
            Ok(rows) => rows.iter().filter_map(|row| row.excess.as_ref()).collect(),
            Err(reason) => vec![reason],
        };
        text.extend(reasons.iter().map(|reason| format!("{workload}: {reason}\n")));
    }
    text + "If the change is intended, the same command with --bless --reason \"why\" makes these figures the baseline.\n"
}

impl CompareArgs {
    /// Compares the two runs, and returns the result as Markdown.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let folder = measure::runs_folder(self.out.as_deref())?;
        let [before, after] = [&self.before, &self.after].map(|name| report::read(name, &folder));
        Ok(compare(&before?, &after?, self.tolerance.unwrap_or(0.0)))
    }
}

fn compare(before: &Run, after: &Run, tolerance: f64) -> String {
    let runs = [("A", before), ("B", after)];
    let mut text: String =
        runs.map(|(name, run)| format!("{name}: {}, `{}`\n", run.run, report::command(run))).concat();
    text += "\nOther differences between the runs, which may affect the figures:\n\n";
    let differences = report::differences(before, after);
    text += if differences.is_empty() { "- nothing\n" } else { "" };
    text.extend(differences.iter().map(|(name, old, new)| format!("- {name}: A {old}, B {new}\n")));
    let point = |one: &WorkloadResult| (one.workload.clone(), one.timed, one.log_rows, one.threads);
    let (mut compared, mut notes) = (Vec::new(), Vec::new());
    for old in &before.workloads {
        let Some(new) = after.workloads.iter().find(|new| point(old) == point(new)) else { continue };
        let workload = named(before, old);
        if old.baseline != new.baseline {
            notes.push(format!("{workload}: ratios of A are to {}, of B to {}", old.baseline, new.baseline));
        }
        let labels: BTreeSet<_> = old.arms.iter().chain(&new.arms).map(|arm| &arm.label).collect();
        for label in labels {
            let [a, b] = [old, new].map(|workload| workload.arms.iter().find(|arm| arm.label == *label));
            // Explain why an arm has no row, or has incomplete measurements.
            notes.extend([("A", a), ("B", b)].into_iter().filter_map(|(run, arm)| match arm {
                None => Some(format!("{label}: not in {run}")),
                Some(arm) => Some(format!("{label}, {run}: {}", report::inert(&format::outcome(&arm.outcome)?))),
            }));
            let (Some(a), Some(b)) = (a, b) else { continue };
            if let (Some(then), Some(now)) = (Figures::of(a), Figures::of(b)) {
                let mut rows = rows(Some(&then), &now, tolerance);
                rows.retain(|row| row.cells[0] != TIME || !view::is_baseline(new, b));
                compared.push(Comparison { workload: workload.clone(), arm: label.clone(), rows: Ok(rows) });
            }
        }
    }
    for ((name, run), (_, other)) in runs.into_iter().zip([runs[1], runs[0]]) {
        let alone = run.workloads.iter().filter(|one| other.workloads.iter().all(|two| point(one) != point(two)));
        notes.extend(alone.map(|workload| format!("only {name} has {}", named(run, workload))));
    }
    text += &format!("\n{}", table(&compared));
    text.extend(notes.iter().map(|note| format!("- {note}\n")));
    text + "\nA time is better or worse where the 95% interval of the difference excludes 0 and the tolerance.\n"
}

fn named(run: &Run, workload: &WorkloadResult) -> String {
    let name = view::name(run, workload);
    if workload.timed.is_of_command() { name } else { format!("{name}, {} threads", workload.threads) }
}

/// Allowed minor faults above the baseline. glibc serves small requests, and its heaps for plonky2's threads grow by
/// a few hundred pages during the first proofs of a process. A buffer that is faulted in again for each proof adds
/// thousands.
const FAULTS: f64 = 400.0;
/// [`FAULTS`] for a large baseline, as a share of the baseline.
const FAULTS_SHARE: f64 = 0.25;
/// Allowed system calls of the arena above the baseline. While the arena still adapts its size, the median proof makes one call more or
/// less. One call per buffer would add hundreds.
const SYSTEM_CALLS: f64 = 4.0;
/// Allowed escaped bytes above the baseline. The proof and a few small blocks outlive a phase. A buffer that stays alive is larger than
/// this.
const ESCAPED_BYTES: f64 = 1_048_576.0;
/// Allowed increase of the live peak, as a share of the baseline. Other processes can't change the peak. Scheduling of
/// the prover's threads moves it by a thousandth.
const LIVE_PEAK_SHARE: f64 = 0.01;
/// Allowed increase of the peak ratio. Thread scheduling moves the peaks of both allocators, and one huge page is a
/// tenth of the memory of the smallest process here.
const PEAK_RSS_RATIO: f64 = 0.1;

/// Measurements of an arm's proofs. Lower is better.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Figures {
    /// Lower quartile of the number of minor faults in a warm proof. It hides the occasional growth of glibc's heaps,
    /// which is larger on a busy machine, but shows a buffer that every proof faults in again.
    minor_faults: Option<u64>,
    /// Median number of the arena's system calls in a warm proof.
    system_calls: Option<u64>,
    /// Median growth of live page runs and slab blocks in a warm proof, in bytes: the memory that outlives its phase,
    /// including the finished proof.
    escaped_bytes: Option<u64>,
    /// Peak live bytes of the arena; `None` in an older baseline.
    live_peak_bytes: Option<u64>,
    /// Highest resident memory over all proofs, as a ratio to the baseline arm's.
    peak_rss_ratio: Option<f64>,
    /// Wall-clock time as a ratio to the baseline arm's, round by round; `None` if there are too few rounds.
    warm_time_ratio: Option<TimeRatio>,
}

/// A ratio of times and its 95% interval. Also holds an exact value, for which `low` and `high` equal `median`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct TimeRatio {
    median: f64,
    low: f64,
    high: f64,
}

/// A kind of measurement: its name, its value, its allowed increase over an earlier value, and its format.
type Figure = (&'static str, fn(&Figures) -> Option<TimeRatio>, fn(f64) -> f64, fn(f64) -> String);

/// All kinds of measurement. The time comes last, and has a tolerance on top of its noise.
const FIGURES: [Figure; 6] = [
    ("minor faults", |of| exactly(of.minor_faults), |then| FAULTS.max(then * FAULTS_SHARE), count),
    ("system calls", |of| exactly(of.system_calls), |_| SYSTEM_CALLS, count),
    ("escaped bytes", |of| exactly(of.escaped_bytes), |_| ESCAPED_BYTES, count),
    (LIVE_PEAK, |of| exactly(of.live_peak_bytes), |then| then * LIVE_PEAK_SHARE, |figure| format::bytes(figure as u64)),
    ("peak RSS / glibc's", |of| of.peak_rss_ratio.map(TimeRatio::exactly), |_| PEAK_RSS_RATIO, ratio),
    (TIME, |of| of.warm_time_ratio, |_| 0.0, ratio),
];

fn exactly(figure: Option<u64>) -> Option<TimeRatio> {
    figure.map(|figure| TimeRatio::exactly(figure as f64))
}

fn count(figure: f64) -> String {
    format::count(figure as u64)
}

fn ratio(figure: f64) -> String {
    format!("{figure:.3}")
}

const TIME: &str = "warm time / glibc's";
const LIVE_PEAK: &str = "live peak";

impl Figures {
    fn of(arm: &ArmResult) -> Option<Self> {
        let summary = view::figures(arm)?;
        let mut faults: Vec<u64> = view::warm(arm).map(|proof| proof.sample.minflt).collect();
        faults.sort_unstable();
        Some(Self {
            minor_faults: faults.get(faults.len() / 4).copied(),
            system_calls: summary.warm_system_calls,
            escaped_bytes: warm_median(arm, "escaped_bytes"),
            live_peak_bytes: live_peak_bytes(std::slice::from_ref(arm)),
            peak_rss_ratio: summary.peak_rss_ratio.map(rounded),
            warm_time_ratio: summary.wall_ratio.and_then(TimeRatio::of),
        })
    }

    /// Returns the name of a missing measurement, other than the time and those that older baselines lack.
    fn missing(&self) -> Option<&'static str> {
        let mut needed = FIGURES.iter().filter(|(name, ..)| ![TIME, LIVE_PEAK].contains(name));
        needed.find(|(_, of, ..)| of(self).is_none()).map(|(name, ..)| *name)
    }
}

impl TimeRatio {
    fn of(ratio: Ratio) -> Option<Self> {
        let interval = ratio.believed()?;
        let (median, low, high) = (rounded(ratio.median), rounded(interval.low), rounded(interval.high));
        Some(Self { median, low, high })
    }

    /// Returns an exact value, without noise.
    fn exactly(median: f64) -> Self {
        Self { median, low: median, high: median }
    }

    /// Returns how far `now` must be above `then` to count as different. A difference of medians has its own interval, combined from the
    /// two medians' intervals (Zou and Donner, "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008).
    fn noise(then: Self, now: Self) -> f64 {
        (then.high - then.median).hypot(now.median - now.low)
    }
}

/// Returns the median of a counter over our arm's warm proofs; `None` if there are no warm proofs, or if one does not report the counter.
fn warm_median(arm: &ArmResult, counter: &str) -> Option<u64> {
    let values: Option<Vec<_>> = view::warm(arm).map(|proof| proof.sample.counters.get(counter).copied()).collect();
    whole_median(values?.into_iter())
}

/// Rounds to four decimals, which are enough for a reader of the file.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e4).round() / 1e4
}

/// One measurement, with its earlier and its current value.
struct Row {
    /// Its name, both values, the allowed value, and the verdict.
    cells: [String; 5],
    /// A sentence that states by how much it exceeds its limit; `None` if it does not, or is not judged.
    excess: Option<String>,
}

/// Returns one row for the time, and one for each other measurement that either side has. `tolerance` is the allowed
/// increase of the time ratio, on top of the noise of both sides, because noise must not fail a comparison.
fn rows(before: Option<&Figures>, now: &Figures, tolerance: f64) -> Vec<Row> {
    let row = |&(name, of, slack, shown): &Figure| {
        let (then, here) = (before.and_then(of), of(now));
        let of_time = name == TIME;
        let limit = |then: TimeRatio, now| {
            let tolerance = if of_time { tolerance } else { slack(then.median) };
            then.median + tolerance + TimeRatio::noise(then, now)
        };
        let text = |side: Option<TimeRatio>| match side {
            None => String::new(),
            Some(TimeRatio { median, low, high }) if of_time => format!("{median:.3} [{low:.3}, {high:.3}]"),
            Some(side) => shown(side.median),
        };
        let [old, mut new] = [then, here].map(text);
        let (mut allowed, mut excess) = (String::new(), None);
        let verdict = if let (Some(then), Some(here)) = (then, here) {
            if name == LIVE_PEAK {
                new += &format!(" ({:+.1}%)", 100.0 * (here.median / then.median - 1.0));
            }
            allowed = shown(limit(then, here));
            let (above, below) = (here.median - limit(then, here), then.median - limit(here, then));
            if above > 0.0 {
                let by = shown(above);
                excess = Some(format!("{name}: {new}, baseline {old}, allowed {allowed}: {by} too much"));
                format!("WORSE by {by}")
            } else if below > 0.0 {
                format!("better by {}", shown(below))
            } else {
                "holds".into()
            }
        } else {
            let is_new = then.is_none() && (!of_time || before.is_none());
            let why = if of_time { "too few rounds" } else { "gone" };
            if is_new { "new".into() } else { why.into() }
        };
        let row = Row { cells: [name.to_owned(), old, new, allowed, verdict], excess };
        (of_time || then.is_some() || here.is_some()).then_some(row)
    };
    FIGURES.iter().filter_map(row).collect()
}

/// Version of the file format. It changes whenever this code would misread an older file.
const SCHEMA: u32 = 1;

const HEADER: &str = "\
# The figures with which `prove-bench check` compares zk-alloc, and under [[blessed]] the reason for each change of them.
# Written by `prove-bench check --bless --reason \"...\"`. Do not edit by hand.

";

/// Returns the one-line error for a baseline that cannot be used.
fn unusable(path: &Path, reason: &str) -> UsageError {
    UsageError(format!("the baseline {} {reason}", path.display()))
}

/// The whole baseline file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Baseline {
    schema: u32,
    /// Keyed by `prover/workload`.
    #[serde(default)]
    workloads: BTreeMap<String, Entry>,
    /// Oldest first.
    #[serde(default)]
    blessed: Vec<Blessing>,
}

/// The measurements of one workload, and the conditions that they depend on.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Entry {
    log_rows: u32,
    threads: usize,
    machine: String,
    profile: String,
    #[serde(flatten)]
    figures: Figures,
}

/// One accepted change of the measurements.
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

impl Baseline {
    /// Reads the file. With `or_new`, a missing file counts as an empty baseline.
    fn read(path: &Path, or_new: bool) -> Result<Self, UsageError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && or_new => Ok(format!("schema = {SCHEMA}")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err("does not exist: `prove-bench check --bless --reason \"...\"` makes it from this code".to_owned())
            }
            read => read.map_err(|error| format!("cannot be read: {error}")),
        };
        text.and_then(|text| Self::parse(&text)).map_err(|reason| unusable(path, &reason))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let in_a_line = |error: toml::de::Error| format!("is no baseline: {}", error.message().replace('\n', "; "));
        let table: toml::Table = text.parse().map_err(in_a_line)?;
        // Checks the schema first, because this code cannot interpret another schema.
        let schema = table.get("schema").and_then(toml::Value::as_integer);
        if schema != Some(SCHEMA.into()) {
            let found = schema.map_or("no schema".into(), |schema| format!("schema {schema}"));
            return Err(format!("has {found}, and this is for schema {SCHEMA}: move it away and bless anew"));
        }
        let baseline: Self = toml::from_str(text).map_err(in_a_line)?;
        let missing = |(key, entry): (&String, &Entry)| Some((key.clone(), entry.figures.missing()?));
        match baseline.workloads.iter().find_map(missing) {
            Some((key, figure)) => Err(format!("is no baseline: it lacks the {figure} of {key}")),
            None => Ok(baseline),
        }
    }

    /// Checks that the baseline has measurements of these workloads at these sizes. It must have no other workloads,
    /// unless the user restricted the check.
    fn covers(&self, items: &[Item], is_restricted: bool) -> Result<(), String> {
        let keys = || items.iter().map(|item| item.key.as_str());
        if let Some(unknown) = self.workloads.keys().find(|key| !is_restricted && keys().all(|known| known != *key)) {
            return Err(format!(
                "has figures of {unknown}, which is no workload of this build (those are {}): restrict the check with \
                 --workloads, or bless anew",
                keys().collect::<Vec<_>>().join(", ")
            ));
        }
        items.iter().try_for_each(|Item { key, spec, .. }| match self.workloads.get(key) {
            None => Err(format!("has no figures of {key}: bless them (--bless --reason \"...\" --workloads {key})")),
            Some(entry) if (entry.log_rows, entry.threads) != (spec.check_log_rows, THREADS) => Err(format!(
                "has figures of {key} at 2^{} rows on {} threads, and it is checked at 2^{} on {THREADS}: bless it again",
                entry.log_rows, entry.threads, spec.check_log_rows
            )),
            Some(_) => Ok(()),
        })
    }

    fn bless(&mut self, entries: Vec<(String, Entry)>, machine: &Machine, reason: &str) {
        self.blessed.push(Blessing {
            at: machine.started_at,
            reason: reason.to_owned(),
            commit: report::commit(machine),
            machine: name_of(machine),
            kernel: report::known(machine.kernel.as_deref()),
            rustc: machine.build.rustc.clone(),
            workloads: entries.iter().map(|(key, _)| key.clone()).collect(),
        });
        self.workloads.extend(entries);
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
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

    fn figures(minor_faults: u64, (median, low): (f64, f64)) -> Figures {
        Figures {
            minor_faults: Some(minor_faults),
            system_calls: Some(0),
            escaped_bytes: Some(1 << 16),
            live_peak_bytes: Some(100_000_000),
            peak_rss_ratio: Some(1.0),
            warm_time_ratio: Some(TimeRatio { median, low, high: 2.0 * median - low }),
        }
    }

    /// Each measurement must fail the check by itself just above its limit, and pass below it. The allowance for faults grows with the
    /// baseline.
    #[test]
    fn each_figure_fails_the_check_just_above_its_limit() {
        let exceeding = |faults: u64, change: &dyn Fn(&mut Figures)| -> String {
            let baseline = figures(faults, (0.9, 0.88));
            let mut now = baseline.clone();
            change(&mut now);
            let rows = rows(Some(&baseline), &now, 0.05);
            rows.iter().filter(|row| row.excess.is_some()).map(|row| row.cells[0].as_str()).collect()
        };
        assert_eq!(exceeding(80, &|now| now.minor_faults = Some(480)), "");
        assert_eq!(exceeding(80, &|now| now.minor_faults = Some(481)), "minor faults");
        assert_eq!(exceeding(4000, &|now| now.minor_faults = Some(5000)), "");
        assert_eq!(exceeding(4000, &|now| now.minor_faults = Some(5001)), "minor faults");
        assert_eq!(exceeding(80, &|now| now.system_calls = Some(5)), "system calls");
        assert_eq!(exceeding(80, &|now| now.escaped_bytes = Some((1 << 16) + (1 << 20) + 1)), "escaped bytes");
        assert_eq!(exceeding(80, &|now| now.live_peak_bytes = Some(101_000_001)), "live peak");
        assert_eq!(exceeding(80, &|now| now.peak_rss_ratio = Some(1.101)), "peak RSS / glibc's");
        assert_eq!(exceeding(80, &|now| now.warm_time_ratio = None), "", "a missing time is not judged");
    }

    /// Noise must not be reported as a change, nor a change as noise, in either direction. On a busy machine the median may be anywhere, so
    /// only an interval that is entirely worse shows a regression.
    #[test]
    fn a_time_is_judged_beyond_the_noise_of_both_runs_and_the_tolerance() {
        for (before, now, tolerance, verdict) in [
            // Each interval extends 0.02 from its median, so 0.05 plus 0.028 is allowed.
            ((0.9, 0.88), (0.978, 0.958), 0.05, "holds"),
            ((0.9, 0.88), (0.979, 0.959), 0.05, "WORSE by 0.001"),
            ((0.9, 0.88), (1.3, 0.94), 0.05, "holds"),
            // From a CI run on a busy machine, whose baseline was low by chance; it must not fail.
            ((0.754, 0.446), (1.009, 0.959), 0.05, "holds"),
            ((0.9, 0.89), (0.91, 0.9), 0.0, "holds"),
            ((0.9, 0.89), (0.95, 0.94), 0.0, "WORSE by 0.036"),
            ((0.95, 0.94), (0.9, 0.89), 0.0, "better by 0.036"),
        ] {
            let rows = rows(Some(&figures(0, before)), &figures(0, now), tolerance);
            assert_eq!(rows.last().unwrap().cells[4], verdict, "{before:?} {now:?}");
        }
    }
}
