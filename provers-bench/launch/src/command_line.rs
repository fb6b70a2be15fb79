//! What a command line asks for, as far as it decides what is built. The rest is for the bench to read.

use crate::package::Package;
use std::path::Path;

/// What is to be built and started.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    Help,
    /// A tool beside the bench.
    Tool {
        needs_jemalloc: bool,
        needs_peers: bool,
        arguments: Vec<String>,
    },
    /// The bench of one prover.
    One {
        package: Box<Package>,
        needs_peers: bool,
        arguments: Vec<String>,
    },
    /// Those of several, one after the other.
    Each(Vec<Run>),
}

/// One of several benches to run.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) package: Package,
    pub(crate) needs_peers: bool,
    pub(crate) arguments: Vec<String>,
}

/// Tools beside the bench: none of these calls a prover.
const TOOLS: [&str; 5] = ["report", "compare", "simulate", "replay", "exec"];
/// Those of them that run an arm.
const TOOLS_WITH_ARMS: [&str; 1] = ["replay"];
/// Commands of a prover's bench.
const OF_PROVERS: [&str; 3] = ["check", "record", "provers"];

/// Reads a command line without the program's name; the error is one line that says what is valid.
pub(crate) fn read(provers: &[Package], mut words: Vec<String>) -> Result<Asked, String> {
    if words.first().is_some_and(|word| word == "--package") {
        let folder = words.get(1).ok_or("--package takes the folder of a package")?;
        let package = Box::new(Package::read(Path::new(folder))?);
        words.drain(..2);
        return Ok(Asked::One { package, needs_peers: names_peers(&words), arguments: words });
    }
    let needs_peers = names_peers(&words);
    let first = words.first().cloned().unwrap_or_default();
    match &*first {
        "--help" | "-h" | "help" => Ok(Asked::Help),
        "--version" => Ok(Asked::Tool { needs_jemalloc: false, needs_peers: false, arguments: words }),
        tool if TOOLS.contains(&tool) => {
            let has_arms = TOOLS_WITH_ARMS.contains(&tool);
            Ok(Asked::Tool { needs_jemalloc: has_arms, needs_peers: has_arms && needs_peers, arguments: words })
        }
        "check" => check(provers, words),
        "record" => {
            let name = words.get(1).map_or("", String::as_str);
            let package = Box::new(named(provers, name).ok_or_else(|| unknown(provers, name))?.clone());
            Ok(Asked::One { package, needs_peers, arguments: words })
        }
        "provers" => {
            let of = |package: &Package| {
                let mut arguments = words.clone();
                arguments[0].clone_from(&package.word);
                Run { package: package.clone(), needs_peers, arguments }
            };
            Ok(Asked::Each(provers.iter().map(of).collect()))
        }
        name => {
            let package = Box::new(named(provers, name).ok_or_else(|| unknown(provers, name))?.clone());
            Ok(Asked::One { package, needs_peers, arguments: words })
        }
    }
}

/// `check [PROVER]`, or `check --workloads PROVER/NAME,...`: each prover's bench is asked for its own.
fn check(provers: &[Package], mut words: Vec<String>) -> Result<Asked, String> {
    if let Some(package) = words.get(1).and_then(|name| named(provers, name)).cloned() {
        words.remove(1);
        return Ok(Asked::One { package: Box::new(package), needs_peers: false, arguments: words });
    }
    if words.iter().any(|word| word == "--help" || word == "-h") {
        let package = provers.iter().find(|package| package.has_baseline).ok_or("no prover has a baseline.toml")?;
        return Ok(Asked::One { package: Box::new(package.clone()), needs_peers: false, arguments: words });
    }
    let workloads = take_option(&mut words, "--workloads");
    let mut runs = Vec::new();
    for package in provers.iter().filter(|package| package.has_baseline) {
        let mut arguments = words.clone();
        if let Some(workloads) = &workloads {
            let of_it: Vec<_> = workloads.split(',').filter(|name| prover_of(name) == Some(&package.word)).collect();
            if of_it.is_empty() {
                continue;
            }
            arguments.extend(["--workloads".to_owned(), of_it.join(",")]);
        }
        runs.push(Run { package: package.clone(), needs_peers: false, arguments });
    }
    let gated = || provers.iter().filter(|package| package.has_baseline).map(|package| package.word.as_str());
    for name in workloads.iter().flat_map(|names| names.split(',')) {
        if !gated().any(|prover| prover_of(name) == Some(prover)) {
            let valid = gated().collect::<Vec<_>>().join(", ");
            return Err(format!("no workload {name:?}: name it as PROVER/NAME; provers with a baseline are {valid}"));
        }
    }
    Ok(Asked::Each(runs))
}

fn prover_of(workload: &str) -> Option<&str> {
    workload.split_once('/').map(|(prover, _)| prover)
}

/// Takes an option and its value out of a command line.
fn take_option(words: &mut Vec<String>, name: &str) -> Option<String> {
    let prefix = format!("{name}=");
    if let Some(at) = words.iter().position(|word| word.starts_with(&prefix)) {
        return words.remove(at).strip_prefix(&prefix).map(str::to_owned);
    }
    let at = words.iter().position(|word| word == name).filter(|at| at + 1 < words.len())?;
    words.remove(at);
    Some(words.remove(at))
}

fn named<'a>(provers: &'a [Package], word: &str) -> Option<&'a Package> {
    provers.iter().find(|package| package.word == word)
}

/// Whether a command line names an allocator that is not built otherwise.
fn names_peers(arguments: &[String]) -> bool {
    let mut is_next = false;
    for argument in arguments {
        let names = if is_next { Some(argument.as_str()) } else { argument.strip_prefix("--allocators=") };
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

pub(crate) fn help(provers: &[Package]) -> String {
    let mut text = "Real proofs, verified, under several allocators in lockstep\n\n".to_owned();
    text += "Usage: cargo prove-bench COMMAND ...\n       cargo prove-bench --package FOLDER COMMAND ...\n\nProvers:\n";
    for prover in provers {
        text += &format!("  {:10} {}\n", prover.word, prover.about);
    }
    text + "\nCommands of every prover:\n  \
            check      holds small workloads to a committed baseline: check [PROVER]\n  \
            record     writes a trace of a prover's allocations: record PROVER\n  \
            provers    runs all provers, one after the other: provers --smoke\n\n\
            Tools beside the bench:\n  \
            report     makes a run's report again, or the tables of the documentation\n  \
            compare    says what changed from one run to another\n  \
            exec       runs any command under allocators that are preloaded\n  \
            simulate, replay\n             allocation traces, replayed through policies, or on memory\n\n\
            --package FOLDER takes a prover of your own: docs/benchmarking.md has the steps.\n\
            cargo prove-bench COMMAND --help says more.\n"
}

fn unknown(provers: &[Package], word: &str) -> String {
    let words = provers.iter().map(|package| package.word.as_str());
    let valid: Vec<_> = words.chain(OF_PROVERS).chain(TOOLS).collect();
    let given = if word.is_empty() { "no prover given".to_owned() } else { format!("no prover {word:?}") };
    format!("{given}: valid are {} (cargo prove-bench --help says more)", valid.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provers() -> Vec<Package> {
        let package = |word: &str, has_baseline| Package {
            word: word.into(),
            name: format!("bench-{word}"),
            has_baseline,
            ..Package::bench(Path::new("/nowhere"))
        };
        vec![package("jolt", true), package("miden", false), package("plonky3", true)]
    }

    fn asked(line: &str) -> Result<Asked, String> {
        read(&provers(), line.split_whitespace().map(str::to_owned).collect())
    }

    /// The words that are built and started, each with its arguments.
    fn started(line: &str) -> Vec<String> {
        match asked(line).unwrap() {
            Asked::Help => vec!["help".into()],
            Asked::Tool { arguments, .. } => vec![format!(": {}", arguments.join(" "))],
            Asked::One { package, arguments, .. } => vec![format!("{}: {}", package.word, arguments.join(" "))],
            Asked::Each(runs) => {
                runs.iter().map(|run| format!("{}: {}", run.package.word, run.arguments.join(" "))).collect()
            }
        }
    }

    /// A newcomer waits for the prover that was asked for, and not for all of them.
    #[test]
    fn only_what_is_asked_for_is_built() {
        assert_eq!(started("plonky3 --smoke"), ["plonky3: plonky3 --smoke"]);
        assert_eq!(started("record jolt"), ["jolt: record jolt"]);
        assert_eq!(started("replay a.trace"), [": replay a.trace"]);
        assert_eq!(started("check --rounds 6"), ["jolt: check --rounds 6", "plonky3: check --rounds 6"]);
        assert_eq!(started("check plonky3"), ["plonky3: check"]);
        assert_eq!(started("check --workloads plonky3/keccak"), ["plonky3: check --workloads plonky3/keccak"]);
        assert_eq!(
            started("provers --smoke"),
            ["jolt: jolt --smoke", "miden: miden --smoke", "plonky3: plonky3 --smoke"]
        );
        assert_eq!(started("--help"), ["help"]);
    }

    #[test]
    fn mistakes_are_answered_with_what_is_valid() {
        for (line, valid) in [
            ("plonky9", "jolt, miden, plonky3, check"),
            ("", "no prover given"),
            ("record", "plonky3"),
            ("check --workloads keccak", "PROVER/NAME"),
            ("check --workloads miden/vm", "jolt, plonky3"),
            ("--package /nowhere/at/all x", "/nowhere/at/all/Cargo.toml"),
        ] {
            let message = asked(line).unwrap_err();
            assert!(message.contains(valid) && message.lines().count() == 1, "{line}: {message}");
        }
    }

    /// mimalloc, snmalloc and TCMalloc are minutes of C++, for those who ask for them.
    #[test]
    fn peers_are_built_where_one_is_named() {
        let needed = |line: &str| match asked(line).unwrap() {
            Asked::Tool { needs_jemalloc, needs_peers, .. } => (needs_jemalloc, needs_peers),
            Asked::One { needs_peers, .. } => (true, needs_peers),
            other => panic!("{other:?}"),
        };
        assert_eq!(needed("exec --allocators all -- make --allocators mimalloc"), (false, false));
        assert_eq!(needed("plonky3 --smoke"), (true, false));
        assert_eq!(needed("plonky3 --allocators glibc,zk-alloc-thp-never,jemalloc-tuned"), (true, false));
        assert_eq!(needed("plonky3 --allocators all"), (true, true));
        assert_eq!(needed("replay a.trace --allocators=glibc,mimalloc"), (true, true));
    }
}
