//! Compares figures with stored ones: a run with an earlier run (`compare`), or this code with the committed baseline of
//! its provers (`check`, the gate).
//!
//! The gate proves small workloads under glibc and zk-alloc in lockstep. Figures that other processes cannot change
//! (faults, system calls, escaped bytes, memory) fail it by themselves. Time fails it only if it is worse than the
//! baseline by more than the noise of both runs and a tolerance.

use crate::arms;
use crate::machine::Machine;
use crate::measure::{self, Failure, Interrupt, binaries};
use crate::plan::{self, Plan, UsageError, percentage};
use crate::report::{self, Style};
use crate::results::{ArmResult, MIN_ROUNDS_FOR_VERDICT, Outcome, Run, WorkloadResult, format, view};
use crate::workloads::{Prover, WorkloadSpec};
use anyhow::Context;
use clap::Args;
use figures::{Figures, Row, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

mod figures;

/// The arm that the gate holds to the baseline, and the one that its time and memory are compared with.
const GATED: &str = arms::OURS;
const REFERENCE: &str = arms::BASELINE;
/// The baseline of a package, next to its `Cargo.toml`.
const FILE: &str = "baseline.toml";
/// Fixed, because the figures depend on the number of threads.
const THREADS: usize = 2;
/// Fixed, so that every check has the same inputs and orders.
const SEED: u64 = 1;
/// Allowed increase of the gate's time ratio, on top of both intervals. The intervals cover the noise within each run.
/// Two quiet runs may differ by this much.
const TOLERANCE: f64 = 0.05;
/// The same between machines or build profiles, because page faults weigh differently on each.
const TOLERANCE_ELSEWHERE: f64 = 0.15;

/// Options of both commands.
#[derive(Args, Debug)]
struct Common {
    /// Allowed increase of the warm-time ratio, on top of the noise of both runs [default: 0 for `compare`; 5% for `check`,
    /// or 15% on another machine or build profile]
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    tolerance: Option<f64>,
    /// Folder of the runs [default: prove-bench in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Options of `compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Earlier run
    #[arg(value_name = "RUN_A")]
    before: String,
    /// Later run
    #[arg(value_name = "RUN_B")]
    after: String,
    #[command(flatten)]
    common: Common,
}

/// Options of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// File with the baseline figures [default: baseline.toml next to the package's Cargo.toml]
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Make the figures of this run the new baseline; requires --reason
    #[arg(long)]
    bless: bool,
    /// Why the figures may change; recorded in the baseline's history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Comma-separated workloads to check, each as NAME or PROVER/NAME [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    workloads: Vec<String>,
    /// Warm rounds; a verdict on time needs 6
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

/// The job of a check.
#[derive(Debug)]
struct Check {
    items: Vec<Item>,
    baseline: Option<PathBuf>,
    /// The reason, if the figures of this run become the baseline.
    bless: Option<String>,
    tolerance: Option<f64>,
    /// The user named the workloads to check.
    restricted: bool,
}

/// One workload to check.
#[derive(Debug)]
struct Item {
    /// `prover/workload`.
    key: String,
    log_rows: u32,
    plan: Plan,
}

/// Checks the provers of a package against their baseline, which is in `folder` by default. It is read before anything
/// is built or proved. Returns the comparison and what to do about it, and whether the check failed.
pub(crate) fn check(provers: &'static [Prover], args: CheckArgs, folder: &Path) -> anyhow::Result<(String, bool)> {
    let job = Check::of(provers, args)?;
    let path = job.baseline.clone().unwrap_or_else(|| folder.join(FILE));
    let baseline = Baseline::read(&path, job.bless.is_some())?;
    if job.bless.is_none() {
        job.matches(&baseline).map_err(|reason| unusable(&path, &reason))?;
    }
    let interrupt = Interrupt::on_signals()?;
    // The arms are the same for every workload.
    let arms = binaries::folder(&job.items[0].plan.contestants, &interrupt)?;
    job.hold(baseline, &path, &arms, &interrupt)
}

impl Check {
    /// The job that these options describe.
    fn of(provers: &'static [Prover], args: CheckArgs) -> Result<Self, UsageError> {
        let CheckArgs { baseline, bless, reason, workloads, rounds, common: Common { tolerance, out } } = args;
        let reason = reason.map(|reason| reason.trim().to_owned());
        let bless = match (bless, reason) {
            (false, None) => None,
            (true, Some(reason)) if !reason.is_empty() => Some(reason),
            (true, _) => return Err(UsageError::Other("--bless takes --reason \"why the figures may change\"".into())),
            (false, Some(_)) => {
                return Err(UsageError::Other("--reason is kept with --bless, which is not given".into()));
            }
        };
        if bless.is_some() && (rounds as usize) < MIN_ROUNDS_FOR_VERDICT {
            let message = format!("--bless takes {MIN_ROUNDS_FOR_VERDICT} rounds or more, not {rounds}");
            return Err(UsageError::Other(message));
        }
        let known = provers.iter().flat_map(|prover| prover.workloads.iter().map(move |spec| (prover, spec)));
        let all: Vec<(String, &'static Prover, &'static WorkloadSpec)> =
            known.map(|(prover, spec)| (format!("{}/{}", prover.name, spec.name), prover, spec)).collect();
        if all.is_empty() {
            return Err(UsageError::Other("there is nothing to check: this build has no prover".into()));
        }
        let find = |given: &String| {
            let found = all.iter().find(|(key, _, spec)| key == given || spec.name == given).cloned();
            found.ok_or_else(|| UsageError::unknown("workload", given, all.iter().map(|(key, ..)| key.as_str())))
        };
        let restricted = !workloads.is_empty();
        let chosen = if restricted { workloads.iter().map(find).collect::<Result<_, _>>()? } else { all };
        let item = |(key, prover, spec): (String, &'static Prover, &'static WorkloadSpec)| {
            let (name, log_rows) = (spec.name, spec.check_log_rows);
            let options = format!(
                "check --workloads {name} --log-rows {log_rows} --rounds {rounds} --threads {THREADS} --seed {SEED} \
                 --allocators {REFERENCE},{GATED}"
            );
            let mut plan = plan::of_line(prover, &options)?;
            plan.measured.out.clone_from(&out);
            Ok(Item { key, log_rows, plan })
        };
        let items = chosen.into_iter().map(item).collect::<Result<_, _>>()?;
        Ok(Self { items, baseline, bless, tolerance, restricted })
    }

    /// Checks that `baseline` has figures of these workloads at these sizes. Without `--workloads` it must have no
    /// others.
    fn matches(&self, baseline: &Baseline) -> Result<(), String> {
        let known = |key: &String| self.restricted || self.items.iter().any(|item| &item.key == key);
        if let Some(unknown) = baseline.workloads.keys().find(|key| !known(key)) {
            let keys: Vec<_> = self.items.iter().map(|item| item.key.as_str()).collect();
            return Err(format!(
                "has figures of {unknown}, which is no workload of this build (those are {}): restrict the check with \
                 --workloads, or bless anew",
                keys.join(", ")
            ));
        }
        self.items.iter().try_for_each(|Item { key, log_rows, .. }| match baseline.workloads.get(key) {
            None => Err(format!("has no figures of {key}: bless them (--bless --reason \"...\" --workloads {key})")),
            Some(entry) if (entry.log_rows, entry.threads) != (*log_rows, THREADS) => Err(format!(
                "has figures of {key} at 2^{} rows on {} threads, and it is checked at 2^{log_rows} on {THREADS}: bless \
                 it again",
                entry.log_rows, entry.threads
            )),
            Some(_) => Ok(()),
        })
    }
}

impl Check {
    /// Runs every workload with the arms' binaries in `folder`, and judges or blesses the results.
    fn hold(
        &self,
        mut baseline: Baseline,
        path: &Path,
        folder: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(String, bool)> {
        let (mut compared, mut entries, mut machine) = (Vec::new(), Vec::new(), None);
        for item in &self.items {
            let run = measure::run(&item.plan, folder, interrupt)?;
            if run.interrupted {
                measure::print("interrupted: nothing was judged\n");
                return Err(Failure::Interrupted.into());
            }
            let entry = entry(&run);
            let rows =
                entry.as_ref().map(|now| self.rows(baseline.workloads.get(&item.key), now)).map_err(Clone::clone);
            compared.push(Comparison { workload: item.key.clone(), arm: GATED.into(), rows });
            entries.extend(entry.map(|entry| (item.key.clone(), entry)));
            machine = Some(run.machine);
        }
        let mut passed = compared.iter().all(|comparison| comparison.rows.is_ok());
        let mut text = table(&compared);
        match (&self.bless, machine) {
            (Some(reason), Some(machine)) if passed => {
                if !self.restricted {
                    // This also drops workloads that no longer exist.
                    baseline.workloads.clear();
                }
                baseline.bless(entries, &machine, reason);
                baseline.write(path)?;
                text += &format!("These figures are the baseline now, in {}: {reason}\n", path.display());
            }
            (Some(_), _) => text += "Nothing was blessed: every arm must prove.\n",
            (None, _) => {
                passed &= compared.iter().flat_map(|comparison| &comparison.rows).flatten().all(Row::holds);
                text += &conclusion(&compared, passed);
            }
        }
        Ok((text, !passed))
    }

    fn rows(&self, before: Option<&Entry>, now: &Entry) -> Vec<Row> {
        // Times of one machine and build profile can be compared closely.
        let is_near = before.is_none_or(|one| (&one.machine, &one.profile) == (&now.machine, &now.profile));
        let tolerance = self.tolerance.unwrap_or(if is_near { TOLERANCE } else { TOLERANCE_ELSEWHERE });
        figures::rows(before.map(|entry| &entry.figures), &now.figures, tolerance)
    }
}

/// The figures of a run in which both arms finished. Otherwise the reason why it has none.
fn entry(run: &Run) -> Result<Entry, String> {
    let result = run.workloads.first().ok_or("was not run")?;
    let finished = |name: &str| {
        let arm = result.arms.iter().find(|arm| arm.arm == name).ok_or_else(|| format!("{name} took no part"))?;
        match format::outcome(&arm.outcome) {
            None => Ok(arm),
            Some(text) => Err(format!("{name}: {text}")),
        }
    };
    let gated = finished(GATED)?;
    finished(REFERENCE)?;
    let figures = Figures::of(result, gated).ok_or_else(|| format!("{GATED} has no figures"))?;
    match figures.missing() {
        Some(figure) => Err(format!("{GATED} does not report {figure}")),
        None => Ok(Entry::of(figures, result, run)),
    }
}

/// The figures of one arm in one workload, or why there are none.
struct Comparison {
    workload: String,
    arm: String,
    rows: Result<Vec<Row>, String>,
}

/// A row for each figure. The first row of an arm names it.
fn table(compared: &[Comparison]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for Comparison { workload, arm, rows } in compared {
        let name = [workload.clone(), arm.clone()];
        match rows {
            Ok(rows) => {
                let names = std::iter::once(name).chain(std::iter::repeat([const { String::new() }; 2]));
                lines.extend(names.zip(rows).map(|(name, row)| name.into_iter().chain(row.cells()).collect()));
            }
            Err(_) => {
                let dashes = ["", "", "", "", "FAILED"].map(str::to_owned);
                lines.push(name.into_iter().chain(dashes).collect());
            }
        }
    }
    let header = "workload|allocator|figure of the warm proofs|before|now|allowed|verdict";
    report::drawn(header, lines, Style::Markdown) + "\n\n"
}

/// One line if the check passed. Otherwise the regressions, by how much each exceeds its limit, and how to accept them.
fn conclusion(compared: &[Comparison], passed: bool) -> String {
    if passed {
        return "All figures are within their limits.\n".into();
    }
    let mut text = String::new();
    for Comparison { workload, rows, .. } in compared {
        match rows {
            Err(reason) => text += &format!("{workload}: {reason}\n"),
            Ok(rows) => {
                for Row { figure, before, now, allowed, verdict } in rows {
                    if let Verdict::Worse(by) = verdict {
                        text += &format!(
                            "{workload}: {figure}: {now}, baseline {before}, allowed {allowed}: {by} too much\n"
                        );
                    }
                }
            }
        }
    }
    text + "If that is meant, the same command with --bless --reason \"why\" makes these figures the baseline.\n"
}

impl CompareArgs {
    /// The comparison of the two runs, as Markdown.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let folder = measure::runs_folder(self.common.out.as_deref())?;
        let [before, after] = [&self.before, &self.after].map(|name| report::read(name, &folder));
        Ok(compare(&before?, &after?, self.common.tolerance.unwrap_or(0.0)))
    }
}

fn compare(before: &Run, after: &Run, tolerance: f64) -> String {
    let runs = [("A", before), ("B", after)];
    let mut text: String =
        runs.map(|(name, run)| format!("{name}: {}, `{}`\n", run.run, report::command(run))).concat();
    text += "\nWhat else differs, and may have made a difference:\n\n";
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
            notes.extend([("A", a), ("B", b)].into_iter().filter_map(|(name, arm)| trouble(label, name, arm)));
            let (Some(a), Some(b)) = (a, b) else { continue };
            if let (Some(then), Some(now)) = (Figures::of(old, a), Figures::of(new, b)) {
                let mut rows = figures::rows(Some(&then), &now, tolerance);
                rows.retain(|row| row.figure != figures::TIME || !view::is_baseline(new, b));
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

/// Why an arm has no row, or has incomplete figures.
fn trouble(label: &str, run: &str, arm: Option<&ArmResult>) -> Option<String> {
    match arm.map(|arm| &arm.outcome) {
        None => Some(format!("{label}: not in {run}")),
        Some(Outcome::Finished) => None,
        Some(outcome) => Some(format!("{label}, {run}: {}", report::inert(&format::outcome(outcome)?))),
    }
}

/// Changes whenever this code would misread an older file.
const SCHEMA: u32 = 1;

const HEADER: &str = "\
# The figures that `prove-bench check` holds zk-alloc to, and under [[blessed]] why they are what they are.
# Written by `prove-bench check --bless --reason \"...\"`: not by hand.

";

/// A baseline that cannot be used, in one line.
fn unusable(path: &Path, reason: &str) -> UsageError {
    UsageError::Other(format!("the baseline {} {reason}", path.display()))
}

/// The whole file.
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

/// The figures of one workload, and the conditions that they depend on.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Entry {
    log_rows: u32,
    threads: usize,
    machine: String,
    profile: String,
    #[serde(flatten)]
    figures: Figures,
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
    fn of(figures: Figures, result: &WorkloadResult, run: &Run) -> Self {
        Self {
            log_rows: result.log_rows,
            threads: result.threads,
            machine: name_of(&run.machine),
            profile: run.machine.build.profile.clone(),
            figures,
        }
    }
}

impl Baseline {
    /// Reads the file. With `or_new`, a missing one is an empty baseline.
    fn read(path: &Path, or_new: bool) -> Result<Self, UsageError> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|reason| unusable(path, &reason)),
            Err(error) if error.kind() == ErrorKind::NotFound && or_new => {
                Ok(Self { schema: SCHEMA, workloads: BTreeMap::new(), blessed: Vec::new() })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let how = "does not exist: `prove-bench check --bless --reason \"...\"` makes it from this code";
                Err(unusable(path, how))
            }
            Err(error) => Err(unusable(path, &format!("cannot be read: {error}"))),
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

    fn bless(&mut self, entries: Vec<(String, Entry)>, machine: &Machine, reason: &str) {
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
    use crate::report::tests::{EVEN, run, workload, workload_of};
    use crate::results::record::tests::arm;

    /// An arm that failed or is missing in one run must not look unchanged, nor may other differences stay unsaid.
    #[test]
    fn what_one_run_lacks_and_what_else_differs_is_said() {
        let failed = arm("zk-alloc", Outcome::Failed { round: 3, reason: "hung".into() }, &EVEN[..3]);
        let before = run(vec![workload(&[("glibc", &EVEN), ("zk-alloc", &EVEN), ("jemalloc", &EVEN)])]);
        let mut after = run(vec![workload_of(vec![arm("glibc", Outcome::Finished, &EVEN), failed])]);
        after.seed = 9;
        let text = compare(&before, &after, 0.0);
        for part in ["- jemalloc: not in B\n", "- zk-alloc, B: FAILED in round 3: hung\n", "- seed: A 1, B 9\n"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains(" zk-alloc |"), "{text}");
        after.workloads[0].log_rows = 16;
        let text = compare(&before, &after, 0.0);
        assert!(text.contains("only A has poseidon2 2^15") && text.contains("only B has poseidon2 2^16"), "{text}");
    }

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
