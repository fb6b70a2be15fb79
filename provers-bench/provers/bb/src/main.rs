//! `cargo prove-bench bb`: barretenberg's `bb` as a prover of the bench.
//!
//! `bb` is a program in C++ from an npm package, so no allocator can be linked into it. This program prepares what `bb prove` reads,
//! once, and has `prove-bench exec` run it with each allocator preloaded. docs/benchmarking.md says how to get the package.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{env, iter};

use anyhow::{Context, bail, ensure};
use ark_bn254::{Fq, Fr, G1Projective, G2Projective};
use ark_ec::scalar_mul::ScalarMul;
use ark_ec::{CurveGroup, PrimeGroup};
use ark_ff::{BigInteger, PrimeField};
use pico_args::Arguments;

/// The folder of this package.
const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
/// Sizes of circuits, in log2 of their gates.
const SIZES: [u32; 3] = [14, 17, 19];
/// The sizes for which [`Inputs`] has a number of rounds.
const VALID_SIZES: RangeInclusive<u32> = 13..=20;
/// Under glibc the peak is 1.4 KB per gate. An allocator that retains memory may take twice as much.
const MEMORY_BYTES_PER_GATE: u64 = 4096;
/// `--smoke`, unless the command line says otherwise.
const SMOKE: [(&str, &str); 2] = [("--rounds", "2"), ("--allocators", "glibc,jemalloc,zk-alloc")];

const HELP: &str = "\
Usage: cargo prove-bench bb [--log-rows N] [--threads N] [--smoke] [--rounds N] [--allocators LIST] [--timeout S]
                           [--until-precise P] [--max-time S] [--seed N] [--out DIR] [--json]
       cargo prove-bench profile bb [--log-rows N] [--threads N] [--out DIR]

Proves circuits of 2^14, 2^17 and 2^19 gates, or of 2^N with --log-rows, in a process for each proof. Every proof is verified;
of a profile, the last.
--smoke proves the smallest circuit in two rounds. The exit code is that of exec; 0 if the npm package is missing.
";

/// Exit codes of `exec`: a run that failed, a wrong command line, and Ctrl-C.
const FAILED: u8 = 1;
const USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Whether `exec` runs, and deals with Ctrl-C.
static IS_MEASURING: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let complain = |error: anyhow::Error| eprintln!("prove-bench: {error:#}");
    let code = match Job::parse(Arguments::from_env()) {
        Ok(Some(job)) => job.run().unwrap_or_else(|error| {
            complain(error);
            FAILED
        }),
        Ok(None) => {
            print!("{HELP}");
            0
        }
        Err(error) => {
            complain(error);
            USAGE
        }
    };
    code.into()
}

/// The command line.
struct Job {
    is_profile: bool,
    sizes: Vec<u32>,
    threads: Option<NonZeroU32>,
    out: Option<PathBuf>,
    /// Options of `exec`.
    others: Vec<OsString>,
}

impl Job {
    /// `None` asks for help.
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

    /// Runs `exec` for each size, and returns the worst exit code.
    fn run(&self) -> anyhow::Result<u8> {
        let Some(bb) = program() else {
            eprintln!(
                "prove-bench: bb is skipped, because its npm package is missing: \
                 `npm ci --ignore-scripts --prefix provers-bench/provers/bb` installs it"
            );
            return Ok(0);
        };
        let on_interrupt = || {
            // `exec` writes what it has measured, and its exit code says so.
            if !IS_MEASURING.load(Relaxed) {
                process::exit(INTERRUPTED.into());
            }
        };
        ctrlc::set_handler(on_interrupt).context("cannot wait for Ctrl-C")?;
        let mut worst = 0;
        for &size in &self.sizes {
            let needed = MEMORY_BYTES_PER_GATE << size;
            if available_bytes().is_some_and(|available| available < needed) {
                eprintln!("prove-bench: bb-{size} is skipped, because less than {} MB are free", needed / 1_000_000);
                continue;
            }
            let inputs = Inputs::prepare(&bb, size).with_context(|| format!("cannot prepare bb-{size}"))?;
            IS_MEASURING.store(true, Relaxed);
            let code = self.exec(&inputs)?;
            IS_MEASURING.store(false, Relaxed);
            worst = worst.max(code);
            if [USAGE, INTERRUPTED].contains(&code) {
                break;
            }
        }
        Ok(worst)
    }

    /// Runs `exec` for one size, and returns its exit code.
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
        // The launcher gave this package a target folder of its own, inside the workspace's.
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
            succeed(Command::new("sh").args(["-c", &verify]))?;
        }
        Ok(status.code().and_then(|code| code.try_into().ok()).unwrap_or(INTERRUPTED))
    }
}

/// The program of the npm package, if it is installed.
fn program() -> Option<PathBuf> {
    let platform = if cfg!(target_arch = "aarch64") { "arm64-linux" } else { "amd64-linux" };
    let path = Path::new(FOLDER).join("node_modules/@aztec/bb.js/build").join(platform).join("bb");
    path.is_file().then_some(path)
}

/// The kernel's estimate of the memory that a new program can have.
fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The secret of our reference string. Everyone knows it, so a proof over this string convinces nobody.
const SECRET: u64 = 0x5eed;
/// The start of the ceremony's point in G2, as `bb` carries it: the real part of x, big-endian.
const CEREMONY_POINT: [u8; 8] = [0x01, 0x18, 0xc4, 0xd5, 0xb8, 0x37, 0xbc, 0xc2];
/// Verifies the proof in the script's folder, and takes it away before. So no earlier proof, right or wrong, passes for that of a later
/// run.
const VERIFY: &str = "#!/bin/sh
cd \"${0%/*}\" && mv proof verified && ./verifier verify -c . -k vk -p verified -i public_inputs
";

/// The files that `bb` reads for a circuit of 2^`size` gates. They are made once, in a folder of their own.
struct Inputs {
    size: u32,
    folder: PathBuf,
}

impl Inputs {
    /// Makes the files, unless they are there.
    fn prepare(bb: &Path, size: u32) -> anyhow::Result<Self> {
        let inputs = Self { size, folder: cache()?.join(size.to_string()) };
        // The key is made last.
        if !inputs.path("vk").is_file() {
            eprintln!("prove-bench: preparing bb-{size}: circuit, witness, reference string and verification key");
            fs::create_dir_all(inputs.path("key"))?;
            inputs.make(bb)?;
        }
        let _ = fs::remove_file(inputs.program());
        let _ = fs::remove_file(inputs.path("proof"));
        symlink(bb, inputs.program())?;
        Ok(inputs)
    }

    fn make(&self, bb: &Path) -> anyhow::Result<()> {
        // A round takes 113 gates, and the tables of XOR take up to 4,096.
        let rounds = ((1 << self.size) - 4096) / 114;
        let script = Path::new(FOLDER).join("inputs.mjs");
        succeed(Command::new("node").arg(script).arg(&self.folder).arg(rounds.to_string()))?;
        self.write_verifier(bb, &self.write_reference_string()?)?;
        let key = self.path("key/vk");
        let options = [("-c", ""), ("-b", "circuit.json"), ("-o", "key")];
        succeed(Command::new(bb).arg("write_vk").args(self.options(&options)))?;
        // It begins with a field element, log2 of the gates.
        let log_gates = fs::read(&key)?.get(31).copied().unwrap_or_default();
        ensure!(u32::from(log_gates) == self.size, "the circuit has 2^{log_gates} gates");
        Ok(fs::rename(key, self.path("vk"))?)
    }

    /// Writes the powers of [`SECRET`] in G1, as many as the circuit has gates. Returns the secret in G2.
    fn write_reference_string(&self) -> anyhow::Result<Vec<u8>> {
        let secret = Fr::from(SECRET);
        let powers = iter::successors(Some(Fr::from(1_u64)), |power| Some(*power * secret));
        let powers: Vec<_> = powers.take(1 << self.size).collect();
        let bytes = |coordinate: Fq| coordinate.into_bigint().to_bytes_be();
        let points = G1Projective::generator().batch_mul(&powers);
        let string: Vec<u8> = points.into_iter().flat_map(|point| [point.x, point.y]).flat_map(bytes).collect();
        fs::write(self.path("bn254_g1.dat"), string)?;
        let point = (G2Projective::generator() * secret).into_affine();
        Ok([point.x.c0, point.x.c1, point.y.c0, point.y.c1].into_iter().flat_map(bytes).collect())
    }

    /// Writes a copy of `bb` that verifies over our reference string. `bb` itself has the ceremony's point in G2, so it would refuse
    /// every proof at the pairing.
    fn write_verifier(&self, bb: &Path, point: &[u8]) -> anyhow::Result<()> {
        let mut program = fs::read(bb)?;
        let mut found = (0..program.len()).filter(|&at| program[at..].starts_with(&CEREMONY_POINT));
        let (Some(at), None) = (found.next(), found.next()) else {
            bail!("{} does not have the ceremony's point once", bb.display())
        };
        program[at..at + point.len()].copy_from_slice(point);
        for (file, bytes) in [("verifier", &program[..]), ("verify", VERIFY.as_bytes())] {
            fs::write(self.path(file), bytes)?;
            fs::set_permissions(self.path(file), Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// The file that each run writes next to its proof, always with the same content.
    fn public_inputs(&self) -> PathBuf {
        from_here(self.path("public_inputs"))
    }

    /// The command that proves.
    fn command(&self) -> impl Iterator<Item = OsString> {
        let options = [("-c", ""), ("-b", "circuit.json"), ("-w", "witness.gz"), ("-k", "vk"), ("-o", "")];
        [from_here(self.program()).into(), "prove".into()].into_iter().chain(self.options(&options))
    }

    /// The command line that verifies the proof, for a shell.
    fn verification(&self) -> String {
        format!("'{}'", from_here(self.path("verify")).to_string_lossy().replace('\'', r"'\''"))
    }

    /// Each option with the path of its file.
    fn options(&self, options: &[(&str, &str)]) -> Vec<OsString> {
        options.iter().flat_map(|(option, file)| [option.into(), from_here(self.path(file)).into()]).collect()
    }

    /// A link to `bb`. `exec` calls a command by its file's name, so each size has a row of its own.
    fn program(&self) -> PathBuf {
        self.path(&format!("bb-{}", self.size))
    }

    fn path(&self, file: &str) -> PathBuf {
        if file.is_empty() { self.folder.clone() } else { self.folder.join(file) }
    }
}

/// The path relative to the current folder, if it lies below. Tables show the command, and absolute paths differ between machines.
fn from_here(path: PathBuf) -> PathBuf {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(here).map(Path::to_owned).unwrap_or(path)
}

/// The folder of all inputs, in this package's target folder. Other inputs have another one.
fn cache() -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    [include_str!("main.rs"), include_str!("../inputs.mjs")].hash(&mut hasher);
    // npm writes this file when it installs a package.
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("node_modules/.package-lock.json")).ok().hash(&mut hasher);
    let program = env::current_exe()?;
    let target = program.ancestors().nth(2).context("this program lies in no target folder")?;
    Ok(target.join("inputs").join(format!("{:016x}", hasher.finish())))
}

/// Runs a program that must succeed, and hides its output.
fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
