//! Facts about a run besides its figures: machine, build, code and command. One list serves every output.

use crate::results::format;
use crate::results::record::Run;

/// One fact.
pub(super) struct Fact {
    pub(super) name: &'static str,
    pub(super) value: fn(&Run) -> String,
    /// Whether a difference in this fact may explain a difference between two runs.
    pub(super) matters: bool,
    /// The entry of the report's page that shows the fact, and its format there. Facts with the same entry are joined.
    pub(super) page: Option<(&'static str, &'static str)>,
    /// Its format in the Markdown sentence that lists the facts.
    pub(super) sentence: Option<&'static str>,
    /// The fact applies to provers, not to a command.
    pub(super) of_provers: bool,
}

impl Fact {
    const fn new(name: &'static str, value: fn(&Run) -> String) -> Self {
        Self { name, value, matters: true, page: None, sentence: None, of_provers: false }
    }

    const fn page(self, entry: &'static str, how: &'static str) -> Self {
        Self { page: Some((entry, how)), ..self }
    }

    const fn sentence(self, how: &'static str) -> Self {
        Self { sentence: Some(how), ..self }
    }

    const fn of_provers(self) -> Self {
        Self { of_provers: true, ..self }
    }

    /// The fact may differ between two runs on the same machine without explaining anything.
    const fn by_itself(self) -> Self {
        Self { matters: false, ..self }
    }
}

/// All facts, in display order; `{}` stands for the value.
pub(super) const FACTS: &[Fact] = &[
    Fact::new("processor", |run| known(&run.machine.cpu)).page("Processor", "{}").sentence("{}"),
    Fact::new("cores", |run| run.machine.cores.to_string()).page("Processor", ", {} cores").sentence(", {} cores"),
    Fact::new("memory", |run| run.machine.memory_bytes.map_or("unknown".into(), format::bytes))
        .page("Memory", "{}")
        .sentence(", {} of memory"),
    Fact::new("kernel", |run| known(&run.machine.kernel)).page("Kernel", "{}").sentence(", Linux {}"),
    Fact::new("transparent huge pages", |run| known(&run.machine.transparent_huge_pages))
        .page("Transparent huge pages", "{}")
        .sentence(", transparent huge pages {}"),
    Fact::new("overcommit", |run| known(&run.machine.overcommit_memory)).page("Overcommit", "{}"),
    Fact::new("load", |run| known(&run.machine.load_average)).page("Load when it started", "{}").by_itself(),
    Fact::new("compiler", |run| run.machine.build.rustc.clone()).page("Compiler", "{}").sentence("; {}").of_provers(),
    Fact::new("profile", |run| format!("{}, opt-level {}", run.machine.build.profile, run.machine.build.opt_level))
        .page("Compiler", ", {}")
        .of_provers(),
    Fact::new("target", |run| run.machine.build.target.clone()).page("Compiler", ", {}").of_provers(),
    Fact::new("flags", |run| run.machine.build.rustflags.clone()).page("Flags", "{}").sentence(", `{}`").of_provers(),
    Fact::new("vector instructions", |run| run.machine.build.vector_features.join(", "))
        .page("Vector instructions", "{}")
        .of_provers(),
    Fact::new("commit", commit).page("Commit", "{}").sentence("; commit {}"),
    Fact::new("sources", |run| run.machine.build.sources.clone()).page("Sources", "{}"),
    Fact::new("Cargo.lock", |run| known(&run.machine.lockfile_sha256)).page("Cargo.lock, SHA-256", "{}"),
    Fact::new("command line", |run| run.command_line.join(" ")).page("Command line", "{}").by_itself(),
    Fact::new("seed", |run| run.seed.to_string()).page("Seed", "{}"),
    Fact::new("warm rounds", |run| run.rounds.to_string()).page("Rounds asked for", "{}"),
    Fact::new("threads", |run| run.threads.to_string())
        .page("Threads of the prover's pool", "{}")
        .by_itself()
        .of_provers(),
    Fact::new("start", |run| run.machine.started_at.to_string()).page("Started", "{}").by_itself(),
    Fact::new("prover", |run| run.prover.clone()),
    Fact::new("interrupted", |run| run.interrupted.to_string()),
];

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

/// The commit of the run, marked if the working tree had changes.
pub(super) fn commit(run: &Run) -> String {
    let commit = run.machine.git_commit.as_deref().unwrap_or("unknown");
    format!("{commit}{}", if run.machine.git_dirty == Some(true) { " with changes" } else { "" })
}

/// The value, or "unknown" if the machine does not report it.
pub(super) fn known(value: &Option<String>) -> String {
    value.clone().unwrap_or_else(|| "unknown".into())
}

/// The facts that apply to `run`.
fn applying(run: &Run) -> impl Iterator<Item = &'static Fact> {
    let is_of_command = run.is_of_command();
    FACTS.iter().filter(move |fact| !(fact.of_provers && is_of_command))
}

/// The facts of `run` in one sentence.
pub(super) fn sentence(run: &Run) -> String {
    let parts = applying(run).filter_map(|fact| Some(fact.sentence?.replace("{}", &(fact.value)(run))));
    parts.collect::<String>() + "."
}

/// The entries of the report's page, each with its facts.
pub(super) fn entries(run: &Run) -> Vec<(&'static str, String)> {
    let mut entries: Vec<(&'static str, String)> = Vec::new();
    for fact in applying(run) {
        let Some((entry, how)) = fact.page else { continue };
        let text = how.replace("{}", &(fact.value)(run));
        match entries.iter_mut().find(|(name, _)| *name == entry) {
            Some((_, texts)) => texts.push_str(&text),
            None => entries.push((entry, text)),
        }
    }
    entries
}

/// Facts that differ between two runs and may explain a difference: name, and both values.
pub(crate) fn differences(before: &Run, after: &Run) -> Vec<(&'static str, String, String)> {
    let facts = FACTS.iter().filter(|fact| fact.matters);
    let pairs = facts.map(|fact| (fact.name, (fact.value)(before), (fact.value)(after)));
    pairs.filter(|(_, old, new)| old != new).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests as example;
    use super::*;
    use crate::results::timed::Timed;

    #[test]
    fn a_command_line_is_shown_as_a_user_types_it() {
        let line = "target/release/prove-bench x --out folder y --out=folder --output z";
        let mut run = example::run(vec![example::workload(&[("glibc", &example::EVEN)])]);
        run.command_line = line.split(' ').map(String::from).collect();
        assert_eq!(command(&run), "prove-bench x y --output z");
        run.workloads[0].timed = Timed::Runs;
        assert_eq!(command(&run), "prove-bench x --out folder y --out=folder --output z");
    }
}
