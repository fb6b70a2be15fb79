//! `cargo prove-bench bb`: barretenberg's `bb` as a prover of the bench.
//!
//! `bb` is a C++ program from an npm package, so no allocator can be linked into it. This program prepares the files that `bb prove` reads,
//! and runs `bb` with each allocator preloaded, through `prove-bench exec`. docs/benchmarking.md explains how to get the package.
//!
//! - `main`: the command line and the runs
//! - `inputs`: the files that `bb` reads

use std::env;
use std::ffi::OsString;
use std::fs;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use inputs::Inputs;
use pico_args::Arguments;

mod inputs;

/// The folder of this package.
const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
/// Circuit sizes, as log2 of the number of gates.
const SIZES: [u32; 3] = [14, 17, 19];
/// The sizes for which [`Inputs`] can compute a number of rounds.
const VALID_SIZES: RangeInclusive<u32> = 13..=20;
/// Available memory that a run requires, per gate. The peak under glibc is 1.4 KB, and an allocator that retains memory may use twice as
/// much.
const MEMORY_BYTES_PER_GATE: u64 = 4096;
/// Options of `--smoke`, unless the command line sets them.
const SMOKE: [(&str, &str); 2] = [("--rounds", "2"), ("--allocators", "glibc,jemalloc,zk-alloc")];

const HELP: &str = "\
Usage: cargo prove-bench bb [--log-rows N] [--threads N] [--smoke] [--rounds N] [--allocators LIST] [--timeout S]
                           [--until-precise P] [--max-time S] [--seed N] [--out DIR] [--json]
       cargo prove-bench profile bb [--log-rows N] [--threads N] [--out DIR]

Proves circuits of 2^14, 2^17 and 2^19 gates, or of 2^N with --log-rows, in a process for each proof. Every proof is verified;
`profile` verifies the last one.
--smoke proves the smallest circuit in two rounds. The exit code is that of exec; 0 if the npm package is missing.
";

/// Exit codes of `exec`: a failed run, a wrong command line, and Ctrl-C.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let code = match Job::parse(Arguments::from_env()) {
        Ok(Some(job)) => job.run().map_err(|error| (FAILED, error)),
        Ok(None) => {
            print!("{HELP}");
            Ok(0)
        }
        Err(error) => Err((USAGE, error)),
    };
    let complain = |(code, error): (u8, anyhow::Error)| {
        eprintln!("prove-bench: {error:#}");
        code
    };
    code.unwrap_or_else(complain).into()
}

/// The command line.
struct Job {
    is_profile: bool,
    sizes: Vec<u32>,
    threads: Option<NonZeroU32>,
    out: Option<PathBuf>,
    /// Options that are passed on to `exec`.
    others: Vec<OsString>,
}

impl Job {
    /// Parses the command line. Returns `None` if it asks for help.
    fn parse(mut arguments: Arguments) -> anyhow::Result<Option<Self>> {
        let is_profile = match arguments.subcommand()?.as_deref() {
            Some("bb") => false,
            Some("profile") => arguments.subcommand()?.is_some(),
            command => bail!("bb has no {}: valid are bb, profile bb", command.unwrap_or("command of this name")),
        };
        if arguments.contains(["-h", "--help"]) {
            return Ok(None);
        }
        let is_smoke = arguments.contains("--smoke");
        let sizes = match arguments.opt_value_from_str("--log-rows")? {
            Some(size) if VALID_SIZES.contains(&size) => vec![size],
            Some(size) => bail!("--log-rows {size}: valid are {} to {}", VALID_SIZES.start(), VALID_SIZES.end()),
            None if is_smoke => vec![SIZES[0]],
            None if is_profile => vec![SIZES[1]],
            None => SIZES.to_vec(),
        };
        let threads = arguments.opt_value_from_str("--threads")?;
        let out = arguments.opt_value_from_os_str("--out", |folder| anyhow::Ok(folder.into()))?;
        let mut others = arguments.finish();
        for (name, value) in SMOKE.iter().filter(|_| is_smoke) {
            let is_given = others.iter().any(|word| word.to_string_lossy().starts_with(name));
            others.extend([name, value].iter().filter(|_| !is_given).map(OsString::from));
        }
        Ok(Some(Self { is_profile, sizes, threads, out, others }))
    }

    /// Runs `exec` for each size and returns the worst exit code.
    fn run(&self) -> anyhow::Result<u8> {
        let Some(bb) = program() else {
            eprintln!(
                "prove-bench: bb is skipped, because its npm package is missing: \
                 `npm ci --ignore-scripts --prefix provers-bench/provers/bb` installs it"
            );
            return Ok(0);
        };
        let mut prepared = Vec::new();
        for &size in &self.sizes {
            let needed = MEMORY_BYTES_PER_GATE << size;
            if available_bytes().is_some_and(|available| available < needed) {
                eprintln!("prove-bench: bb-{size} is skipped, because less than {} MB are free", needed / 1_000_000);
                continue;
            }
            prepared.push(Inputs::prepare(&bb, size).with_context(|| format!("cannot prepare bb-{size}"))?);
        }
        // Ctrl-C does not end this process: `exec` receives it too, writes the samples so far, and reports the interruption in its exit
        // code.
        ctrlc::set_handler(|| ()).context("cannot wait for Ctrl-C")?;
        let mut worst = 0;
        for inputs in &prepared {
            let code = self.exec(inputs)?;
            worst = worst.max(code);
            if [USAGE, INTERRUPTED].contains(&code) {
                break;
            }
        }
        Ok(worst)
    }

    /// Runs `exec` for one size and returns its exit code.
    fn exec(&self, inputs: &Inputs) -> anyhow::Result<u8> {
        let verify = inputs.verification();
        let mut bench = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        bench.args(["run", "--quiet", "--manifest-path"]).arg(Path::new(FOLDER).join("../../launch/Cargo.toml"));
        bench.args(["--", "exec"]).args(&self.others);
        if let Some(out) = &self.out {
            bench.arg("--out").arg(out);
        }
        if self.is_profile {
            bench.arg("--profile");
        } else {
            bench.args(["--verify", &verify, "--same-output"]).arg(inputs.public_inputs());
        }
        bench.arg("--").args(inputs.command());
        // Builds the bench in the workspace's target folder, inside which the launcher gave this package a folder of its own.
        if let Some(target) = env::var_os("CARGO_BUILD_BUILD_DIR") {
            bench.env("CARGO_TARGET_DIR", target).env_remove("CARGO_BUILD_BUILD_DIR");
        }
        let mut started_as = format!("prove-bench\nbb\n--log-rows\n{}", inputs.size);
        if let Some(threads) = self.threads {
            bench.env("HARDWARE_CONCURRENCY", threads.to_string());
            started_as += &format!("\n--threads\n{threads}");
        }
        self.others.iter().for_each(|word| started_as += &format!("\n{}", word.display()));
        let status = bench.env("PROVE_BENCH_STARTED_AS", started_as).status().context("cannot run cargo")?;
        if self.is_profile && status.success() {
            inputs::succeed(Command::new("sh").args(["-c", &verify]))?;
        }
        Ok(status.code().and_then(|code| code.try_into().ok()).unwrap_or(INTERRUPTED))
    }
}

/// Returns the path of the npm package's program if it is installed.
fn program() -> Option<PathBuf> {
    let platform = if cfg!(target_arch = "aarch64") { "arm64-linux" } else { "amd64-linux" };
    let path = Path::new(FOLDER).join("node_modules/@aztec/bb.js/build").join(platform).join("bb");
    path.is_file().then_some(path)
}

/// Returns the kernel's estimate of the memory that a new program can use.
fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}
