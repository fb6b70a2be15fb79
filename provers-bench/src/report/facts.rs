//! Facts about a run besides its figures: machine, build, code and command.

use crate::results::{Run, format};

/// A fact: its name, its value, and whether it may explain a difference between two runs.
type Fact = (&'static str, String, bool);

fn facts(run: &Run) -> Vec<Fact> {
    let (machine, build) = (&run.machine, &run.machine.build);
    let mut facts = vec![
        ("processor", format!("{}, {} cores", known(machine.cpu.as_deref()), machine.cores), true),
        ("memory", machine.memory_bytes.map_or("unknown".into(), format::bytes), true),
        ("kernel", known(machine.kernel.as_deref()), true),
        ("kind of host", machine.kind_of_host(), true),
        ("overcommit", known(machine.overcommit_memory.as_deref()), true),
        ("load when it started", known(machine.load_average.as_deref()), false),
        ("commit", commit(run), true),
        ("sources", build.sources.clone(), true),
        ("Cargo.lock, SHA-256", known(machine.lockfile_sha256.as_deref()), true),
        ("command line", run.command_line.join(" "), false),
        ("seed", run.seed.to_string(), true),
        ("rounds asked for", run.rounds.to_string(), true),
        ("started", machine.started_at.to_string(), false),
        ("of", run.prover.clone(), true),
        ("interrupted", run.interrupted.to_string(), true),
    ];
    if !run.is_of_command() {
        facts.extend([
            ("compiler", build.rustc.clone(), true),
            ("profile", format!("{}, opt-level {}, {}", build.profile, build.opt_level, build.target), true),
            ("flags", build.rustflags.clone(), true),
            ("vector instructions", build.vector_features.join(", "), true),
            ("threads", run.threads.to_string(), false),
        ]);
    }
    facts
}

/// Every fact: its name and its value.
pub(super) fn all(run: &Run) -> impl Iterator<Item = (&'static str, String)> {
    facts(run).into_iter().map(|(name, value, _)| (name, if value.is_empty() { "none".into() } else { value }))
}

/// Facts that differ between two runs and may explain a difference: name, and both values.
pub(crate) fn differences(before: &Run, after: &Run) -> Vec<(&'static str, String, String)> {
    let later = facts(after);
    let differing = facts(before).into_iter().filter(|(.., matters)| *matters).map(|(name, old, _)| {
        let new = later.iter().find(|(other, ..)| *other == name).map_or("-".into(), |(_, new, _)| new.clone());
        (name, old, new)
    });
    differing.filter(|(_, old, new)| old != new).collect()
}

/// The command line as a user types it: without the driver's folder and without `--out`. A run of another command
/// retains all its words, because some belong to that command.
pub(crate) fn command(run: &Run) -> String {
    let mut words = vec!["prove-bench"];
    let is_of_bench = !run.is_of_command();
    let mut arguments = run.command_line.iter().skip(1).map(String::as_str);
    while let Some(argument) = arguments.next() {
        match argument {
            "--out" if is_of_bench => _ = arguments.next(),
            _ if is_of_bench && argument.starts_with("--out=") => {}
            _ => words.push(argument),
        }
    }
    words.join(" ")
}

/// The facts that a table needs, in one sentence.
pub(super) fn sentence(run: &Run) -> String {
    let (machine, build) = (&run.machine, &run.machine.build);
    let compiler =
        if run.is_of_command() { String::new() } else { format!("; {}, `{}`", build.rustc, build.rustflags) };
    format!(
        "{}: {}, {} cores, {} of memory, Linux {}{compiler}; commit {}.",
        machine.kind_of_host(),
        known(machine.cpu.as_deref()),
        machine.cores,
        machine.memory_bytes.map_or("unknown".into(), format::bytes),
        known(machine.kernel.as_deref()),
        commit(run)
    )
}

/// The kind of host, machine, commit and date of a run.
pub(super) fn on(run: &Run) -> String {
    let machine = &run.machine;
    let day = machine.started_at.strftime("%Y-%m-%d");
    let cpu = machine.cpu.as_deref().unwrap_or("unknown processor");
    let commit = machine.git_commit.as_deref().unwrap_or("unknown");
    let changes = if machine.git_dirty == Some(true) { " with changes" } else { "" };
    let kind = machine.kind_of_host();
    format!("{kind}: {cpu}, {} cores, commit {commit:.12}{changes}, {day}.", machine.cores)
}

/// The commit of the run, marked if the working tree had changes.
fn commit(run: &Run) -> String {
    let changes = if run.machine.git_dirty == Some(true) { " with changes" } else { "" };
    known(run.machine.git_commit.as_deref()) + changes
}

/// The value, or "unknown" if the machine does not report it.
fn known(value: Option<&str>) -> String {
    value.unwrap_or("unknown").to_owned()
}
