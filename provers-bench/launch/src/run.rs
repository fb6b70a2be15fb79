//! Builds a package's driver with cargo, and runs it.

use crate::INTERRUPTED;
use crate::command_line::{PROFILE, word};
use crate::package::Package;
use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Minutes for the first build of the driver on two cores, without a prover and without allocators in C.
const BARE_MINUTES: u32 = 1;
const JEMALLOC_MINUTES: u32 = 1;
const PEERS_MINUTES: u32 = 3;

/// The arm that samples its call sites.
const PROFILED_ARM: &str = "zk-alloc-profile";

/// A package's driver, to be built and run with these arguments.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) package: Package,
    /// The features of the bench: `jemalloc` and `peers` for these allocators, `tune` if an arm has other values of zk-alloc's
    /// constants, and `profile` if call sites are sampled.
    pub(crate) features: Vec<&'static str>,
    pub(crate) arguments: Vec<OsString>,
}

impl Run {
    /// A prover's bench. It always includes an arm with jemalloc, except for a profile.
    pub(crate) fn of_prover(package: &Package, arguments: Vec<OsString>) -> Self {
        let is_profile = word(&arguments, 0) == PROFILE;
        Self::of(package, !is_profile, is_profile, arguments)
    }

    /// A bench that starts no arm needs none of the bench's allocators.
    pub(crate) fn of(package: &Package, has_arms: bool, is_profile: bool, arguments: Vec<OsString>) -> Self {
        let names = |is: fn(&str) -> bool| has_arms && allocators(&arguments).any(is);
        let needed = [
            ("jemalloc", has_arms),
            ("peers", names(|name| !is_built_anyway(name))),
            ("tune", names(is_tuned)),
            ("profile", is_profile || names(|name| name == PROFILED_ARM)),
        ];
        let features = needed.into_iter().filter_map(|(name, is_needed)| is_needed.then_some(name)).collect();
        Self { package: package.clone(), features, arguments }
    }

    /// Builds the driver, then replaces this process by it. So Ctrl-C reaches only the bench, which exits cleanly.
    pub(crate) fn build_and_become(&self) -> ExitCode {
        match self.build() {
            0 => become_it(self.start()),
            code => ExitCode::from(code),
        }
    }

    /// Builds the driver, runs it, and returns its exit code.
    pub(crate) fn build_and_run(&self) -> u8 {
        match self.build() {
            0 => code(self.start().status()),
            code => code,
        }
    }

    fn build(&self) -> u8 {
        let package = &self.package;
        let with = if package.is_bench() { String::new() } else { format!(" with {}", package.word) };
        let of_allocators = self.features.iter().map(|feature| match *feature {
            "jemalloc" => JEMALLOC_MINUTES,
            "peers" => PEERS_MINUTES,
            _ => 0,
        });
        let minutes = match BARE_MINUTES + of_allocators.sum::<u32>() + package.minutes {
            1 => "a minute".to_owned(),
            minutes => format!("{minutes} minutes"),
        };
        eprintln!("prove-bench: building the bench{with}; the first time this takes about {minutes} on 2 cores");
        let begun = Instant::now();
        let code = code(self.cargo("build").status());
        if code == 0 {
            eprintln!("prove-bench: built in {} s; now what it runs", begun.elapsed().as_secs());
        }
        code
    }

    fn start(&self) -> Command {
        let mut command = self.cargo("run");
        command.args(["--quiet", "--"]).args(&self.arguments);
        command
    }

    fn cargo(&self, verb: &str) -> Command {
        let package = &self.package;
        let mut command = Command::new(program());
        command.args([verb, "--release", "--manifest-path"]).arg(package.folder.join("Cargo.toml"));
        command.args(["--bin", &package.name]);
        if package.chooses_allocators {
            command.args(["--no-default-features", "--features", &self.features.join(",")]);
        }
        if !package.is_bench() {
            // Compiled dependencies go to the workspace's target folder, so the packages share them. Two packages may
            // have binaries of the same name, so each package has its own output folder. The driver inherits both
            // variables and builds its arms there.
            let target = target_folder();
            command.env("CARGO_TARGET_DIR", target.join("provers").join(&package.word));
            command.env("CARGO_BUILD_BUILD_DIR", target);
        }
        command
    }
}

/// The target folder that contains this program.
fn target_folder() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let is_target = |folder: &&std::path::Path| folder.join("CACHEDIR.TAG").is_file();
    program.ancestors().find(is_target).map_or_else(|| PathBuf::from("target"), ToOwned::to_owned)
}

fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(unix)]
fn become_it(mut command: Command) -> ExitCode {
    cannot_run(&std::os::unix::process::CommandExt::exec(&mut command));
    ExitCode::FAILURE
}

#[cfg(not(unix))]
fn become_it(mut command: Command) -> ExitCode {
    ExitCode::from(code(command.status()))
}

/// The exit code of a process; 130 if a signal ended it, as for Ctrl-C.
fn code(status: io::Result<std::process::ExitStatus>) -> u8 {
    match status {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(INTERRUPTED),
        Err(error) => {
            cannot_run(&error);
            1
        }
    }
}

fn cannot_run(error: &io::Error) {
    eprintln!("prove-bench: cannot run {}: {error}", program().display());
}

/// The allocators, and sets of them, that a command line names.
fn allocators(arguments: &[OsString]) -> impl Iterator<Item = &str> {
    let words = || arguments.iter().map(|argument| argument.to_str().unwrap_or_default());
    let before = [""].into_iter().chain(words());
    let lists = before.zip(words()).filter_map(|(before, word)| {
        if before == "--allocators" { Some(word) } else { word.strip_prefix("--allocators=") }
    });
    lists.flat_map(|list| list.split(','))
}

/// The set `quick`, and every arm that needs no other library.
fn is_built_anyway(name: &str) -> bool {
    let starts = ["glibc", "jemalloc", "zk-alloc"];
    is_tuned(name) || ["quick", "bump-reset"].contains(&name) || starts.iter().any(|one| name.starts_with(one))
}

/// The arms that set constants of zk-alloc, and the sets of them.
fn is_tuned(name: &str) -> bool {
    ["ablation", "constants"].contains(&name) || name.starts_with("zk-alloc:")
}
