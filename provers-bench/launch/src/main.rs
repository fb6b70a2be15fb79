//! `cargo prove-bench PROVER ...` builds only the package of that prover, prints what it builds, and starts its bench.
//!
//! A prover is a package: a folder in `provers-bench/provers`, or one given by `--package`. This program parses only the part of the
//! command line that determines what to build. The bench parses the rest.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Instant;

use toml::de::{DeTable, DeValue};

/// Exit code for an invalid command line, the same as the bench's.
const USAGE: u8 = 2;
/// Exit code after Ctrl-C, the same as the bench's.
const INTERRUPTED: u8 = 130;

/// Tools that need no prover.
const TOOLS: [&str; 5] = ["report", "compare", "replay", "exec", "host"];
/// Commands of a prover's bench.
const OF_PROVERS: [&str; 4] = ["check", "profile", "record", "provers"];

/// The options of each command (`=` marks an option with a value), and the names of the allocators and their sets. A test of the bench
/// compares this list with the bench's own.
const OPTIONS: &str = include_str!("options.txt");

/// The part of the help after the list of provers.
const COMMANDS: &str = include_str!("commands.txt");

fn main() -> ExitCode {
    let bench_folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in the bench's folder");
    let provers = packages(&bench_folder.join("provers"));
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    if ["--help", "-h", "help"].contains(&word(&words, 0)) {
        println!("Real proofs, verified, under several allocators in lockstep\n");
        println!(
            "Usage: cargo prove-bench COMMAND ...\n       cargo prove-bench --package FOLDER COMMAND ...\n\nProvers:"
        );
        provers.iter().for_each(|prover| println!("  {:10} {}", prover.word, prover.about));
        print!("{COMMANDS}");
        return ExitCode::SUCCESS;
    }
    match read(&Package::bench(bench_folder), &provers, words).as_deref() {
        Ok([run]) => run.build_and_become(),
        Ok(runs) => each(runs),
        Err(message) => {
            eprintln!("prove-bench: {message}");
            ExitCode::from(USAGE)
        }
    }
}

/// Runs the benches one after another and returns the worst exit code.
fn each(runs: &[Run]) -> ExitCode {
    // Ctrl-C does not end this process: the child process also receives the signal, exits cleanly, and reports the interruption in its exit
    // code.
    if let Err(error) = ctrlc::set_handler(|| ()) {
        eprintln!("prove-bench: cannot wait for Ctrl-C: {error}");
    }
    let mut worst = 0;
    for run in runs {
        let code = run.build().err().unwrap_or_else(|| code(run.driver().status()));
        worst = worst.max(code);
        // Other failures do not end the loop: the next prover may accept a value that this one rejects.
        if code == INTERRUPTED {
            break;
        }
    }
    ExitCode::from(worst)
}

/// A package with a driver, and with arms in `src/bin`. The fields are what the launcher needs to know before the build.
#[derive(Clone, Debug, Default)]
struct Package {
    /// The prover's name on the command line, which is the name of its folder. Empty for the bench itself.
    word: String,
    /// The name of the package and of its driver.
    name: String,
    about: String,
    /// Minutes for the first build of the prover on two cores, if the manifest states them.
    minutes: u32,
    folder: PathBuf,
    /// Whether the package forwards the bench's features. If so, the command line decides which allocators are built.
    chooses_allocators: bool,
}

impl Package {
    /// Reads the package in a folder. The error states why the package is invalid.
    fn read(folder: &Path) -> Result<Self, String> {
        let path = folder.join("Cargo.toml");
        let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let names_none = || format!("{} names no package", path.display());
        let manifest = DeValue::Table(DeTable::parse(&text).map_err(|_| names_none())?.into_inner());
        let at =
            |path: &[&str]| path.iter().try_fold(&manifest, |value, key| value.get(*key).map(|inner| inner.get_ref()));
        let word = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let minutes = at(&["package", "metadata", "prove-bench", "minutes"]).and_then(DeValue::as_integer);
        Ok(Self {
            word: word.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            name: at(&["package", "name"]).and_then(DeValue::as_str).ok_or_else(names_none)?.to_owned(),
            about: at(&["package", "description"]).and_then(DeValue::as_str).unwrap_or_default().to_owned(),
            minutes: minutes.and_then(|minutes| minutes.as_str().parse().ok()).unwrap_or(0),
            folder: folder.to_owned(),
            chooses_allocators: ["jemalloc", "peers"].iter().all(|feature| at(&["features", *feature]).is_some()),
        })
    }

    /// Describes the bench itself, a member of the workspace that has the tools but no prover.
    fn bench(folder: &Path) -> Self {
        Self { name: "prove-bench".into(), folder: folder.into(), chooses_allocators: true, ..Self::default() }
    }
}

/// Returns the packages in a folder, sorted by name.
fn packages(folder: &Path) -> Vec<Package> {
    let folders = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut packages: Vec<_> = folders.filter_map(|folder| Package::read(&folder).ok()).collect();
    packages.sort_by(|one, other| one.word.cmp(&other.word));
    packages
}

/// Parses a command line, without the program's name, into the benches to build and run in order. The error is one line that lists the
/// valid words. If at least one prover accepts the options, skips the provers that reject them.
fn read(bench: &Package, provers: &[Package], words: Vec<OsString>) -> Result<Vec<Run>, String> {
    let runs = requested(bench, provers, words)?;
    let with_mistakes = runs.into_iter().map(|run| (mistake(&run.arguments), run));
    let (valid, mistaken): (Vec<_>, Vec<_>) = with_mistakes.partition(|(mistake, _)| mistake.is_none());
    for (why, run) in mistaken {
        let why = why.unwrap_or_default();
        if valid.is_empty() {
            return Err(why);
        }
        eprintln!("prove-bench: {} is skipped: {why}", run.package.word);
    }
    Ok(valid.into_iter().map(|(_, run)| run).collect())
}

/// Like [`read`], but accepts any options.
fn requested(bench: &Package, provers: &[Package], mut words: Vec<OsString>) -> Result<Vec<Run>, String> {
    match word(&words, 0) {
        "--package" => {
            let folder = words.get(1).ok_or("--package takes the folder of a package")?;
            let package = Package::read(Path::new(folder))?;
            words.drain(..2);
            Ok(vec![Run::of_prover(&package, words)])
        }
        tool if TOOLS.contains(&tool) || tool == "--version" => {
            // Options after `--` belong to the command that `exec` runs.
            let mut options = words.iter().take_while(|word| *word != "--");
            let is_profile = tool == "exec" && options.any(|word| word == "--profile");
            Ok(vec![Run::of(bench, tool == "replay", is_profile, words)])
        }
        "check" => check(provers, words),
        "profile" | "record" => Ok(vec![Run::of_prover(named(provers, word(&words, 1))?, words)]),
        "provers" => {
            let run = |package: &Package| {
                words[0] = (&package.word).into();
                Run::of_prover(package, words.clone())
            };
            Ok(provers.iter().map(run).collect())
        }
        name => Ok(vec![Run::of_prover(named(provers, name)?, words)]),
    }
}

/// Returns the names in the line of [`OPTIONS`] that begins with `of`.
fn listed(of: &str) -> Option<Vec<&'static str>> {
    let line = OPTIONS.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix(": "))?;
    Some(line.split(' ').collect())
}

/// Returns why the bench would reject a command line that has an unknown option or allocator, which the launcher can detect before the
/// build. The bench checks everything else.
fn mistake(arguments: &[OsString]) -> Option<String> {
    let command = word(arguments, 0);
    let is_of_prover = !TOOLS.contains(&command) && !OF_PROVERS.contains(&command);
    let valid = listed(command).or_else(|| listed("PROVER").filter(|_| is_of_prover))?;
    let mut words = (1..arguments.len()).map(|at| word(arguments, at));
    while let Some(given) = words.next() {
        match given.strip_prefix("--").map(|option| option.split_once('=').unwrap_or((option, ""))) {
            // The command that `exec` runs begins here.
            None if command == "exec" && !given.starts_with('-') => return None,
            None if given == "-h" => return None,
            None => {}
            Some(("", _)) if command == "exec" && words.next().is_none() => {}
            Some(("" | "help" | "version", _)) => return None,
            Some((name, _)) => match valid.iter().find(|known| known.trim_end_matches('=') == name) {
                Some(known) if known.ends_with('=') && !given.contains('=') => _ = words.next(),
                Some(_) => {}
                None => {
                    let valid: Vec<_> = valid.iter().map(|option| option.trim_end_matches('=')).collect();
                    return Some(format!("no option --{name}: valid are --{}", valid.join(", --")));
                }
            },
        }
    }
    if command == "exec" {
        return Some("no command given: exec [OPTIONS] -- COMMAND".into());
    }
    let known = listed("allocators")?;
    // Names that begin with `zk-alloc:` set constants of zk-alloc.
    let unknown = allocators(arguments).find(|name| !name.contains(':') && !known.contains(name))?;
    Some(format!("unknown allocator {unknown:?}: valid are {}, zk-alloc:CONSTANT=VALUE", known.join(", ")))
}

/// Returns the word at an index as text; empty if there is no such word, or if it is not valid UTF-8.
fn word(words: &[OsString], at: usize) -> &str {
    words.get(at).and_then(|word| word.to_str()).unwrap_or_default()
}

fn named<'a>(provers: &'a [Package], word: &str) -> Result<&'a Package, String> {
    provers.iter().find(|package| package.word == word).ok_or_else(|| {
        let words = provers.iter().map(|package| package.word.as_str());
        let valid: Vec<_> = words.chain(OF_PROVERS).chain(TOOLS).collect();
        let given = if word.is_empty() { "no prover given".to_owned() } else { format!("no prover {word:?}") };
        format!("{given}: valid are {} (cargo prove-bench --help says more)", valid.join(", "))
    })
}

/// Parses `check [PROVER]` or `check --workloads PROVER/NAME,...`. Each prover's bench checks its own workloads.
fn check(provers: &[Package], mut words: Vec<OsString>) -> Result<Vec<Run>, String> {
    if let Ok(package) = named(provers, word(&words, 1)) {
        words.remove(1);
        return Ok(vec![Run::of_prover(package, words)]);
    }
    // Only provers with a baseline can be checked.
    let mut gated: Vec<_> = provers.iter().filter(|package| package.folder.join("baseline.toml").is_file()).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        gated.truncate(1);
    }
    let Some(workloads) = take_option(&mut words, "--workloads") else {
        return Ok(gated.into_iter().map(|package| Run::of_prover(package, words.clone())).collect());
    };
    let is_of =
        |workload: &str, package: &Package| workload.split_once('/').is_some_and(|(word, _)| word == package.word);
    if let Some(name) = workloads.split(',').find(|name| !gated.iter().any(|package| is_of(name, package))) {
        let valid = gated.iter().map(|package| package.word.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!("no workload {name:?}: name it as PROVER/NAME; provers with a baseline are {valid}"));
    }
    let run = |package: &Package| {
        let of_it: Vec<_> = workloads.split(',').filter(|name| is_of(name, package)).collect();
        let arguments = words.iter().cloned().chain(["--workloads".into(), of_it.join(",").into()]).collect();
        (!of_it.is_empty()).then(|| Run::of_prover(package, arguments))
    };
    Ok(gated.into_iter().filter_map(run).collect())
}

/// Removes an option and its value from a command line, and returns the value.
fn take_option(words: &mut Vec<OsString>, name: &str) -> Option<String> {
    let at = words.iter().position(|word| word.to_str().is_some_and(|word| word.split('=').next() == Some(name)))?;
    let option = words.remove(at).into_string().ok()?;
    match option.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => (at < words.len()).then(|| words.remove(at).into_string().ok())?,
    }
}

/// A package whose driver is to be built, and the driver's arguments.
#[derive(Debug)]
struct Run {
    package: Package,
    /// The bench's cargo features: `jemalloc` and `peers` add these allocators, `tune` lets an arm override zk-alloc's constants, and
    /// `profile` samples call sites.
    features: Vec<&'static str>,
    arguments: Vec<OsString>,
}

impl Run {
    /// Describes a run of a prover's bench. Every such run except a profile has arms, and so needs jemalloc.
    fn of_prover(package: &Package, arguments: Vec<OsString>) -> Self {
        let is_profile = word(&arguments, 0) == "profile";
        Self::of(package, !is_profile, is_profile, arguments)
    }

    /// Describes a run and the features that it needs. A run without arms needs none of the bench's allocators.
    fn of(package: &Package, has_arms: bool, is_profile: bool, arguments: Vec<OsString>) -> Self {
        // True for arms that override constants of zk-alloc, and for sets of such arms.
        let is_tuned = |name: &str| ["ablation", "constants"].contains(&name) || name.starts_with("zk-alloc:");
        // True for the set `quick`, and for every arm that does not need the feature `peers`.
        let is_built_anyway = |name: &str| {
            let starts = ["glibc", "jemalloc", "zk-alloc"];
            ["quick", "bump-reset"].contains(&name) || starts.iter().any(|one| name.starts_with(one))
        };
        let names = |is: &dyn Fn(&str) -> bool| has_arms && allocators(&arguments).any(is);
        let needed = [
            ("jemalloc", has_arms),
            ("peers", names(&|name| !is_tuned(name) && !is_built_anyway(name))),
            ("tune", names(&is_tuned)),
            ("profile", is_profile || names(&|name| name == "zk-alloc-profile")),
        ];
        let features = needed.into_iter().filter_map(|(name, is_needed)| is_needed.then_some(name)).collect();
        Self { package: package.clone(), features, arguments }
    }

    /// Builds the driver, then replaces this process with it, so Ctrl-C reaches only the bench, which exits cleanly.
    fn build_and_become(&self) -> ExitCode {
        ExitCode::from(self.build().err().unwrap_or_else(|| code(Err(self.driver().exec()))))
    }

    /// Builds the driver. The error is cargo's exit code.
    fn build(&self) -> Result<(), u8> {
        let Package { word, minutes, .. } = &self.package;
        let with = if word.is_empty() { String::new() } else { format!(" with {word}") };
        // The driver takes one minute to build, jemalloc one more, and the peers three more.
        let of_allocators = [("jemalloc", 1), ("peers", 3)].into_iter().filter(|one| self.features.contains(&one.0));
        let minutes = 1 + minutes + of_allocators.map(|one| one.1).sum::<u32>();
        eprintln!("prove-bench: building the bench{with}; the first time this takes about {minutes} min on 2 cores");
        let begun = Instant::now();
        match code(self.cargo("build").status()) {
            0 => eprintln!(
                "prove-bench: built the driver in {} s; it now builds the programs that it needs, if any",
                begun.elapsed().as_secs()
            ),
            code => return Err(code),
        }
        Ok(())
    }

    fn driver(&self) -> Command {
        let mut command = self.cargo("run");
        command.args(["--quiet", "--"]).args(&self.arguments);
        command
    }

    fn cargo(&self, verb: &str) -> Command {
        let package = &self.package;
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args([verb, "--release", "--manifest-path"]).arg(package.folder.join("Cargo.toml"));
        command.args(["--bin", &package.name]);
        if package.chooses_allocators {
            command.args(["--no-default-features", "--features", &self.features.join(",")]);
        }
        if !package.word.is_empty() {
            // Compiled dependencies go to the workspace's target folder, which contains this program, so the packages share them. Two
            // packages may have binaries of the same name, so each package has its own output folder. The driver inherits both environment
            // variables, so it builds its arms in the same folders.
            let program = env::current_exe().unwrap_or_default();
            let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
            let target = program.ancestors().find(is_target).unwrap_or(Path::new("target"));
            command.env("CARGO_TARGET_DIR", target.join("provers").join(&package.word));
            command.env("CARGO_BUILD_BUILD_DIR", target);
        }
        command
    }
}

/// Returns the exit code of a process; 130, as after Ctrl-C, if a signal killed it.
fn code(status: io::Result<ExitStatus>) -> u8 {
    match status {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(INTERRUPTED),
        Err(error) => {
            eprintln!("prove-bench: cannot run cargo: {error}");
            1
        }
    }
}

/// Returns the allocators and the sets of allocators that a command line names.
fn allocators(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    let lists = (0..arguments.len()).filter_map(|at| match word(arguments, at) {
        "--allocators" => Some(word(arguments, at + 1)),
        word => word.strip_prefix("--allocators="),
    });
    lists.flat_map(|list| list.split(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(line: &str) -> Result<Vec<Run>, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut provers = packages(&folder.join("provers"));
        provers.retain(|package| ["jolt", "miden", "plonky3"].contains(&package.word.as_str()));
        read(&Package::bench(&folder), &provers, line.split_whitespace().map(OsString::from).collect())
    }

    /// A first-time user must wait only for the build of the requested prover.
    #[test]
    fn only_the_requested_provers_are_built() {
        for (line, started) in [
            ("plonky3 --smoke", "plonky3: plonky3 --smoke"),
            ("record jolt", "jolt: record jolt"),
            ("profile miden", "miden: profile miden"),
            ("replay a.trace", ": replay a.trace"),
            ("check --rounds 6", "jolt: check --rounds 6; plonky3: check --rounds 6"),
            ("check plonky3", "plonky3: check"),
            ("check --workloads=plonky3/keccak", "plonky3: check --workloads plonky3/keccak"),
            ("check --workloads plonky3/keccak --bless", "plonky3: check --bless --workloads plonky3/keccak"),
            ("provers --smoke", "jolt: jolt --smoke; miden: miden --smoke; plonky3: plonky3 --smoke"),
            ("exec --rounds 3 sort --parallel=2", ": exec --rounds 3 sort --parallel=2"),
            ("report latest --splice x", ": report latest --splice x"),
        ] {
            let text = |run: &Run| format!("{}: {}", run.package.word, run.arguments.join(" ".as_ref()).display());
            assert_eq!(runs(line).unwrap().iter().map(text).collect::<Vec<_>>().join("; "), started);
        }
    }

    #[test]
    fn errors_name_the_valid_words() {
        for (line, valid) in [
            ("plonky9", "jolt, miden, plonky3, check"),
            ("", "no prover given"),
            ("record", "plonky3"),
            ("check --workloads keccak", "PROVER/NAME"),
            ("check --workloads miden/vm", "jolt, plonky3"),
            ("--package /nowhere/at/all x", "/nowhere/at/all/Cargo.toml"),
            ("plonky3 --smok", "no option --smok: valid are --log-rows, --smoke"),
            ("plonky3 --rounds 3 --round=3", "no option --round: valid are"),
            ("check --blesss", "--bless"),
            ("exec --allocator jemalloc -- true", "--allocators"),
            ("exec --rounds 3", "no command given"),
            ("exec --rounds 3 --", "no command given"),
            ("plonky3 --allocators glibc,hoard", "unknown allocator \"hoard\": valid are quick, peers"),
        ] {
            let message = runs(line).unwrap_err();
            assert!(message.contains(valid) && message.lines().count() == 1, "{line}: {message}");
        }
    }

    /// The peers take minutes to compile. Tunable constants (atomics) and sampling would slow down the arena in runs that do not need them.
    #[test]
    fn allocators_and_their_variants_are_built_only_on_request() {
        for (line, features) in [
            ("exec --allocators all -- make --allocators mimalloc", ""),
            ("exec --profile -- sort file", "profile"),
            ("exec -- sort --profile", ""),
            ("profile plonky3 --workload keccak", "profile"),
            ("plonky3 --smoke", "jemalloc"),
            ("plonky3 --allocators glibc,zk-alloc-thp-never,jemalloc-tuned", "jemalloc"),
            ("plonky3 --allocators all", "jemalloc,peers"),
            ("replay a.trace --allocators=glibc,mimalloc", "jemalloc,peers"),
            ("plonky3 --allocators zk-alloc,zk-alloc:max_resident_probes=0", "jemalloc,tune"),
            ("replay a.trace --allocators=zk-alloc,ablation", "jemalloc,tune"),
            ("plonky3 --allocators zk-alloc,constants", "jemalloc,tune"),
            ("plonky3 --allocators zk-alloc,zk-alloc-profile", "jemalloc,profile"),
        ] {
            assert_eq!(runs(line).unwrap()[0].features.join(","), features, "{line}");
        }
    }

    /// The launcher must find every prover's folder, and CI must run every prover.
    #[test]
    fn every_prover_folder_is_found_and_has_a_ci_job() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../provers");
        let found = packages(&folder);
        for package in &found {
            assert_eq!(package.name, format!("bench-{}", package.word));
            assert!(package.chooses_allocators && package.minutes > 0 && !package.about.is_empty(), "{package:?}");
        }
        assert_eq!(found.len(), fs::read_dir(&folder).unwrap().count());
        let words: Vec<_> = found.iter().map(|package| package.word.as_str()).collect();
        let line = format!("prover: [{}]", words.join(", "));
        assert!(include_str!("../../../.github/workflows/ci.yml").contains(&line), "the workflow lacks {line}");
    }
}
