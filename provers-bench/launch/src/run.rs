//! Builds a package's driver with cargo, and runs it.

use crate::INTERRUPTED;
use crate::command_line::Run;
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

/// A package's driver, to be built and run.
pub(crate) struct Bench<'a> {
    run: &'a Run,
    features: Vec<&'static str>,
    minutes: u32,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        let of = [("jemalloc", run.needs_jemalloc, JEMALLOC_MINUTES), ("peers", run.needs_peers, PEERS_MINUTES)];
        let needed = || of.iter().filter(|(_, is_needed, _)| *is_needed);
        let minutes = BARE_MINUTES + needed().map(|(_, _, minutes)| minutes).sum::<u32>() + run.package.minutes;
        let optional = [("tune", run.needs_tune), ("profile", run.needs_profile)];
        let optional = optional.into_iter().filter(|(_, is_needed)| *is_needed).map(|(name, _)| name);
        Self { run, features: needed().map(|&(name, ..)| name).chain(optional).collect(), minutes }
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
        let package = &self.run.package;
        let with = if package.is_bench() { String::new() } else { format!(" with {}", package.word) };
        let minutes = if self.minutes == 1 { "a minute".to_owned() } else { format!("{} minutes", self.minutes) };
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
        command.args(["--quiet", "--"]).args(&self.run.arguments);
        command
    }

    fn cargo(&self, verb: &str) -> Command {
        let package = &self.run.package;
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

/// Makes this process ignore Ctrl-C while it waits for a child. The child also receives the signal, exits cleanly, and
/// reports it by its exit code.
pub(crate) fn leave_ctrl_c_to_children() {
    #[cfg(unix)]
    {
        extern "C" fn nothing(_: libc::c_int) {}
        // An empty handler instead of SIG_IGN, because a child would inherit SIG_IGN.
        // SAFETY: the handler does nothing.
        #[expect(unsafe_code, reason = "the standard library handles no signals")]
        unsafe {
            libc::signal(libc::SIGINT, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t);
        }
    }
}
