//! `cargo prove-bench PROVER ...`: builds the bench with that prover and no other, says so, and starts it.
//!
//! The provers are features of the package `provers-bench`, and so are the allocators that take long to build; cargo has to know
//! the features before the bench can read its command line. Every set of features has artefacts of its own in the target folder,
//! so switching provers builds nothing twice.

use std::borrow::Cow;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// A prover of the workspace.
struct Prover {
    /// The feature, and the word on the command line.
    name: &'static str,
    about: &'static str,
    /// What its first build takes on two cores, roughly.
    minutes: u32,
}

const PROVERS: [Prover; 3] = [
    Prover { name: "plonky3", about: "two AIRs (Poseidon2, Keccak) and a WHIR opening", minutes: 1 },
    Prover { name: "plonky2", about: "repeated squaring, and proofs of proofs", minutes: 1 },
    Prover { name: "jolt", about: "the commitment scheme Dory, and Spartan with HyperKZG", minutes: 2 },
];

/// Tools beside the bench: none of these calls a prover.
const TOOLS: [&str; 5] = ["report", "compare", "simulate", "replay", "exec"];
/// Tools that call every prover, or the one that is named next.
const PROVING: [&str; 2] = ["check", "record"];

/// Those of them that run no binary of an allocator's: `exec` preloads the distribution's libraries.
const WITHOUT_ARMS: [&str; 4] = ["report", "compare", "simulate", "exec"];

/// The feature of jemalloc, which every table of the bench has.
const JEMALLOC: &str = "jemalloc";
const JEMALLOC_MINUTES: u32 = 1;
/// The feature of the allocators that are not in the bench's set `quick`.
const PEERS: &str = "peers";
const PEERS_MINUTES: u32 = 3;

/// What is built without any prover and any allocator from C: the driver.
const BARE_MINUTES: u32 = 1;

/// The command line cannot be followed: as the bench itself ends then.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().take(2).map(|word| word.to_string_lossy()).collect();
    let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
    let allocators = allocators_for(&words, arguments.iter().map(|word| word.to_string_lossy()));
    match provers_of(&words) {
        Asked::Help => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Asked::Unknown => {
            eprintln!("prove-bench: {}", unknown(words.first().copied()));
            ExitCode::from(USAGE)
        }
        Asked::Provers(provers) => start(&provers, &allocators, arguments),
    }
}

/// What the first words of a command line ask for.
#[derive(Debug, PartialEq)]
enum Asked {
    Help,
    Unknown,
    /// The bench with these provers.
    Provers(Vec<&'static str>),
}

fn provers_of(words: &[&str]) -> Asked {
    let named = |word: &str| PROVERS.iter().map(|prover| prover.name).find(|&name| name == word);
    match words {
        ["--help" | "-h" | "help", ..] => Asked::Help,
        [tool, ..] if TOOLS.contains(tool) || *tool == "--version" => Asked::Provers(Vec::new()),
        [tool, prover, ..] if PROVING.contains(tool) && named(prover).is_some() => {
            Asked::Provers(named(prover).into_iter().collect())
        }
        [tool, ..] if PROVING.contains(tool) => Asked::Provers(PROVERS.iter().map(|prover| prover.name).collect()),
        [prover, ..] => named(prover).map_or(Asked::Unknown, |name| Asked::Provers(vec![name])),
        [] => Asked::Unknown,
    }
}

/// The features of the allocators that a command line needs that begins with `words`.
fn allocators_for<'a>(words: &[&str], arguments: impl Iterator<Item = Cow<'a, str>>) -> Vec<&'static str> {
    match words {
        ["--version", ..] => Vec::new(),
        [tool, ..] if WITHOUT_ARMS.contains(tool) => Vec::new(),
        _ if names_peers(arguments) => vec![JEMALLOC, PEERS],
        _ => vec![JEMALLOC],
    }
}

/// Whether a command line names an allocator that is not built otherwise.
fn names_peers<'a>(arguments: impl Iterator<Item = Cow<'a, str>>) -> bool {
    let mut is_next = false;
    for argument in arguments {
        let names = if is_next { Some(argument.as_ref()) } else { argument.strip_prefix("--allocators=") };
        if names.is_some_and(|names| names.split(',').any(|name| !is_built_anyway(name))) {
            return true;
        }
        is_next = argument == "--allocators";
    }
    false
}

/// Those of the set `quick`, and every arm that needs no other library.
fn is_built_anyway(name: &str) -> bool {
    ["quick", "bump-reset"].contains(&name) || ["glibc", "jemalloc", "zk-alloc"].iter().any(|one| name.starts_with(one))
}

fn help() -> String {
    let mut text = "Real proofs, verified, under several allocators in lockstep\n\n".to_owned();
    text += "Usage: cargo prove-bench COMMAND ...\n\nProvers:\n";
    for prover in &PROVERS {
        text += &format!("  {:10} {}\n", prover.name, prover.about);
    }
    text + "\nTools beside the bench:\n  \
            check      holds small workloads to a committed baseline\n  \
            report     makes a run's report again, or the tables of the documentation\n  \
            compare    says what changed from one run to another\n  \
            exec       runs any command under allocators that are preloaded\n  \
            record, simulate, replay\n             allocation traces: written, replayed through policies, replayed on memory\n\n\
            cargo prove-bench COMMAND --help says more.\n"
}

fn unknown(word: Option<&str>) -> String {
    let valid: Vec<_> = PROVERS.iter().map(|prover| prover.name).chain(PROVING).chain(TOOLS).collect();
    let given = word.map_or_else(|| "no prover given".to_owned(), |word| format!("no prover {word:?}"));
    format!("{given}: valid are {} (cargo prove-bench --help says more)", valid.join(", "))
}

/// Has cargo build the bench and run it.
fn start(provers: &[&str], allocators: &[&str], arguments: Vec<OsString>) -> ExitCode {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let features: Vec<_> = provers.iter().chain(allocators).copied().collect();
    let bench = |verb: &str| {
        let mut command = Command::new(&cargo);
        command.args([verb, "--release", "--package", "provers-bench", "--bin", "prove-bench"]);
        command.args(["--no-default-features", "--features", &features.join(",")]);
        command
    };

    eprintln!("prove-bench: building {}", announced(provers, allocators));
    let begun = Instant::now();
    match bench("build").status() {
        Ok(status) if status.success() => {}
        Ok(status) => return code(status.code()),
        Err(error) => return cannot_run(&cargo, &error),
    }
    eprintln!("prove-bench: built in {} s; now what it runs", begun.elapsed().as_secs());
    let mut run = bench("run");
    run.args(["--quiet", "--"]).args(arguments);
    go_on_as(run, &cargo)
}

/// What is built, and how long that takes.
fn announced(provers: &[&str], allocators: &[&str]) -> String {
    let asked_for = PROVERS.iter().filter(|prover| provers.contains(&prover.name));
    let of_allocators = [(JEMALLOC, JEMALLOC_MINUTES), (PEERS, PEERS_MINUTES)];
    let of_allocators = of_allocators.iter().filter(|(name, _)| allocators.contains(name)).map(|(_, minutes)| minutes);
    let minutes = BARE_MINUTES + of_allocators.sum::<u32>() + asked_for.map(|prover| prover.minutes).sum::<u32>();
    let with = if provers.is_empty() { String::new() } else { format!(" with {}", provers.join(", ")) };
    format!("the bench{with}; the first time this takes about {minutes} minutes on 2 cores")
}

/// Becomes cargo, which becomes the bench: Ctrl-C then reaches the bench alone, which ends in good order.
#[cfg(unix)]
fn go_on_as(mut command: Command, cargo: &OsStr) -> ExitCode {
    cannot_run(cargo, &std::os::unix::process::CommandExt::exec(&mut command))
}

#[cfg(not(unix))]
fn go_on_as(mut command: Command, cargo: &OsStr) -> ExitCode {
    command.status().map_or_else(|error| cannot_run(cargo, &error), |status| code(status.code()))
}

fn cannot_run(cargo: &OsStr, error: &io::Error) -> ExitCode {
    eprintln!("prove-bench: cannot run {}: {error}", cargo.display());
    ExitCode::FAILURE
}

/// The exit code of what was run; 130 where a signal ended it, as for Ctrl-C.
fn code(code: Option<i32>) -> ExitCode {
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(130))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A newcomer waits for the prover that was asked for, and not for all of them.
    #[test]
    fn only_what_is_asked_for_is_built() {
        assert_eq!(provers_of(&["plonky3", "--smoke"]), Asked::Provers(vec!["plonky3"]));
        assert_eq!(provers_of(&["record", "jolt"]), Asked::Provers(vec!["jolt"]));
        assert_eq!(provers_of(&["replay", "a.trace"]), Asked::Provers(vec![]));
        assert_eq!(provers_of(&["check"]), Asked::Provers(vec!["plonky3", "plonky2", "jolt"]));
        assert_eq!(provers_of(&["plonky9"]), Asked::Unknown);
        assert_eq!(provers_of(&[]), Asked::Unknown);
        assert_eq!(provers_of(&["--help"]), Asked::Help);
    }

    /// mimalloc, snmalloc and TCMalloc are minutes of C++, for those who ask for them.
    #[test]
    fn peers_are_built_where_one_is_named() {
        let needed =
            |line: &str| allocators_for(&line.split(' ').collect::<Vec<_>>(), line.split(' ').map(Cow::from)).len();
        assert_eq!(needed("exec --allocators all -- make --allocators mimalloc"), 0);
        assert_eq!(needed("plonky3 --smoke"), 1);
        assert_eq!(needed("plonky3 --allocators glibc,zk-alloc-thp-never,jemalloc-tuned"), 1);
        assert_eq!(needed("plonky3 --allocators all"), 2);
        assert_eq!(needed("replay a.trace --allocators=glibc,mimalloc"), 2);
    }

    /// The list here and the features of the bench are two lists: a prover that is missing in one could not be started.
    #[test]
    fn the_provers_are_the_features_of_the_bench() {
        let manifest = include_str!("../../Cargo.toml");
        let default = manifest.lines().find_map(|line| line.strip_prefix("default = [")).unwrap();
        let mut features: Vec<_> =
            default.trim_end_matches(']').split(", ").map(|name| name.trim_matches('"')).collect();
        let mut provers: Vec<_> = PROVERS.iter().map(|prover| prover.name).chain([PEERS]).collect();
        features.sort_unstable();
        provers.sort_unstable();
        assert_eq!(features, provers);
    }
}
