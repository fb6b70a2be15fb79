//! Reads the part of a command line that decides what to build. The bench reads the rest.

use crate::package::Package;
use crate::run::Run;
use std::ffi::OsString;
use std::path::Path;

/// The meaning of a command line.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    Help,
    /// Benches to build and run, one after another.
    Runs(Vec<Run>),
}

/// The command that profiles.
pub(crate) const PROFILE: &str = "profile";
/// Tools that need no prover.
const TOOLS: [&str; 5] = ["report", "compare", "replay", "exec", "host"];
/// The tool that starts arms.
const TOOL_WITH_ARMS: &str = "replay";
/// Commands of a prover's bench.
const OF_PROVERS: [&str; 4] = ["check", PROFILE, "record", "provers"];

/// Reads a command line without the program's name. The error is one line that states the valid words.
pub(crate) fn read(bench: &Package, provers: &[Package], mut words: Vec<OsString>) -> Result<Asked, String> {
    let one = |package: &Package, words| Ok(Asked::Runs(vec![Run::of_prover(package, words)]));
    match word(&words, 0) {
        "--help" | "-h" | "help" => Ok(Asked::Help),
        "--package" => {
            let folder = words.get(1).ok_or("--package takes the folder of a package")?;
            let package = Package::read(Path::new(folder))?;
            words.drain(..2);
            one(&package, words)
        }
        tool if TOOLS.contains(&tool) || tool == "--version" => {
            let has_arms = tool == TOOL_WITH_ARMS;
            // Options behind `--` belong to the command.
            let mut options = words.iter().take_while(|word| *word != "--");
            let is_profile = tool == "exec" && options.any(|word| word == "--profile");
            Ok(Asked::Runs(vec![Run::of(bench, has_arms, is_profile, words)]))
        }
        "check" => check(provers, words).map(Asked::Runs),
        PROFILE | "record" => one(named(provers, word(&words, 1))?, words),
        "provers" => {
            let run = |package: &Package| {
                let mut arguments = words.clone();
                arguments[0] = (&package.word).into();
                Run::of_prover(package, arguments)
            };
            Ok(Asked::Runs(provers.iter().map(run).collect()))
        }
        name => one(named(provers, name)?, words),
    }
}

/// A word as text; empty if it is missing or is not valid text.
pub(crate) fn word(words: &[OsString], at: usize) -> &str {
    words.get(at).and_then(|word| word.to_str()).unwrap_or_default()
}

/// Reads `check [PROVER]` or `check --workloads PROVER/NAME,...`. Each prover's bench checks its own workloads.
fn check(provers: &[Package], mut words: Vec<OsString>) -> Result<Vec<Run>, String> {
    if let Ok(package) = named(provers, word(&words, 1)) {
        words.remove(1);
        return Ok(vec![Run::of_prover(package, words)]);
    }
    let gated = || provers.iter().filter(|package| package.has_baseline);
    if words.iter().any(|word| word == "--help" || word == "-h") {
        let package = gated().next().ok_or("no prover has a baseline.toml")?;
        return Ok(vec![Run::of_prover(package, words)]);
    }
    let Some(workloads) = take_option(&mut words, "--workloads") else {
        return Ok(gated().map(|package| Run::of_prover(package, words.clone())).collect());
    };
    let is_of =
        |workload: &str, package: &Package| workload.split_once('/').is_some_and(|(word, _)| word == package.word);
    if let Some(name) = workloads.split(',').find(|name| !gated().any(|package| is_of(name, package))) {
        let valid = gated().map(|package| package.word.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!("no workload {name:?}: name it as PROVER/NAME; provers with a baseline are {valid}"));
    }
    let run = |package: &Package| {
        let of_it: Vec<_> = workloads.split(',').filter(|name| is_of(name, package)).collect();
        let arguments = words.iter().cloned().chain(["--workloads".into(), of_it.join(",").into()]).collect();
        (!of_it.is_empty()).then(|| Run::of_prover(package, arguments))
    };
    Ok(gated().filter_map(run).collect())
}

/// Removes an option and its value from a command line, and returns the value.
fn take_option(words: &mut Vec<OsString>, name: &str) -> Option<String> {
    for at in 0..words.len() {
        let value = word(words, at).strip_prefix(name).map(str::to_owned);
        match value.as_deref() {
            Some("") if at + 1 < words.len() => {
                words.remove(at);
                return words.remove(at).into_string().ok();
            }
            Some(value) if value.starts_with('=') => {
                words.remove(at);
                return Some(value[1..].to_owned());
            }
            _ => {}
        }
    }
    None
}

fn named<'a>(provers: &'a [Package], word: &str) -> Result<&'a Package, String> {
    provers.iter().find(|package| package.word == word).ok_or_else(|| unknown(provers, word))
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
            profile    shows where the memory of a proof goes: profile PROVER\n  \
            provers    runs all provers, one after the other: provers --smoke\n\n\
            Other tools:\n  \
            report     makes a run's report again, or the tables of the documentation\n  \
            compare    says what changed from one run to another\n  \
            exec       runs any command under allocators that are preloaded\n  \
            host       measures the price of memory on this machine, and says what to set\n  \
            replay     has allocators serve a trace of allocations, on real memory\n\n\
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
        let bench = Package::bench(Path::new("/nowhere"));
        read(&bench, &provers(), line.split_whitespace().map(OsString::from).collect())
    }

    fn runs(line: &str) -> Vec<Run> {
        match asked(line).unwrap() {
            Asked::Help => panic!("help"),
            Asked::Runs(runs) => runs,
        }
    }

    /// The words of the benches that are started, each with its arguments.
    fn started(line: &str) -> Vec<String> {
        let text = |run: &Run| format!("{}: {}", run.package.word, run.arguments.join(" ".as_ref()).to_str().unwrap());
        runs(line).iter().map(text).collect()
    }

    /// Whether the bench that a line starts is built with a feature.
    fn needs(line: &str, feature: &str) -> bool {
        runs(line)[0].features.contains(&feature)
    }

    /// A newcomer waits only for the build of the requested prover.
    #[test]
    fn only_what_is_asked_for_is_built() {
        assert_eq!(started("plonky3 --smoke"), ["plonky3: plonky3 --smoke"]);
        assert_eq!(started("record jolt"), ["jolt: record jolt"]);
        assert_eq!(started("profile miden"), ["miden: profile miden"]);
        assert_eq!(started("replay a.trace"), [": replay a.trace"]);
        assert_eq!(started("check --rounds 6"), ["jolt: check --rounds 6", "plonky3: check --rounds 6"]);
        assert_eq!(started("check plonky3"), ["plonky3: check"]);
        assert_eq!(started("check --workloads plonky3/keccak"), ["plonky3: check --workloads plonky3/keccak"]);
        assert_eq!(
            started("provers --smoke"),
            ["jolt: jolt --smoke", "miden: miden --smoke", "plonky3: plonky3 --smoke"]
        );
        assert_eq!(asked("--help"), Ok(Asked::Help));
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

    /// mimalloc, snmalloc and TCMalloc take minutes to compile, so they are built only on request.
    #[test]
    fn peers_are_built_where_one_is_named() {
        let needed = |line: &str| (needs(line, "jemalloc"), needs(line, "peers"));
        assert_eq!(needed("exec --allocators all -- make --allocators mimalloc"), (false, false));
        assert_eq!(needed("plonky3 --smoke"), (true, false));
        assert_eq!(needed("plonky3 --allocators glibc,zk-alloc-thp-never,jemalloc-tuned"), (true, false));
        assert_eq!(needed("plonky3 --allocators all"), (true, true));
        assert_eq!(needed("replay a.trace --allocators=glibc,mimalloc"), (true, true));
    }

    /// Atomics in place of constants would slow down the arena of every other run.
    #[test]
    fn constants_can_be_set_only_where_an_arm_sets_one() {
        let needs_tune = |line: &str| needs(line, "tune");
        assert!(!needs_tune("plonky3 --allocators glibc,zk-alloc,zk-alloc-thp-never"));
        assert!(!needs_tune("exec --allocators zk-alloc -- make --allocators ablation"));
        assert!(needs_tune("plonky3 --allocators zk-alloc,zk-alloc:max_resident_probes=0"));
        assert!(needs_tune("replay a.trace --allocators=zk-alloc,ablation"));
        let line = "plonky3 --allocators zk-alloc,constants";
        assert!(needs_tune(line) && !needs(line, "peers"));
    }

    /// A profile needs no peer, and sampling changes the allocator.
    #[test]
    fn call_sites_are_sampled_only_on_request() {
        let needs = |line: &str| (needs(line, "profile"), needs(line, "jemalloc"));
        assert_eq!(needs("profile plonky3 --workload keccak"), (true, false));
        assert_eq!(needs("plonky3 --allocators zk-alloc,zk-alloc-profile"), (true, true));
        assert_eq!(needs("plonky3 --allocators zk-alloc"), (false, true));
        assert_eq!(needs("exec --profile -- sort file"), (true, false));
        assert_eq!(needs("exec -- sort --profile"), (false, false));
    }

    /// A command may have arguments in any encoding.
    #[cfg(unix)]
    #[test]
    fn arguments_reach_the_bench_as_they_are() {
        let path: OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![b'/', 0xff]);
        let words = vec!["exec".into(), "--".into(), path];
        let asked = read(&Package::bench(Path::new("/nowhere")), &provers(), words.clone()).unwrap();
        assert!(matches!(asked, Asked::Runs(runs) if runs[0].arguments == words));
    }
}
