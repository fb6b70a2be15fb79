//! A stress suite in the spirit of mimalloc-bench. It measures the time and memory of allocators under the allocation patterns of servers,
//! pools, short-lived threads and provers. `cargo make stress` measures; `cargo make stress --help` lists the options.
//!
//! The allocators are called directly through `GlobalAlloc`, and none of them is the global allocator, so one binary contains them all.
//! Each run of a pattern is a separate process (this binary again, with hidden arguments), so its peak is its own.
//!
//! In every arm, the bookkeeping of the patterns and of the standard library's threads allocates from glibc, and every call of the
//! allocator under test goes through a virtual function. Both cost every arm the same, except that the glibc arm shares its heap with the
//! bookkeeping.
//!
//! In each round, every arm runs every pattern. For each pattern, the arms run one after another in random order, so the times that a ratio
//! compares are measured shortly after each other.
#![allow(unsafe_code, reason = "calls alarm(2)")]

mod arms;
mod patterns;
mod report;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::io::{Write as _, stdout};
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, thread};

use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};

use arms::{ARMS, Arm, BASELINE, BROKEN, Heap};
use patterns::{PATTERNS, Pattern, Plan, stream};
use report::{GROUPS, Row};
use support::{peak_rss_bytes, restart_peak};

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.child {
        child(&options)
    } else if options.list {
        // Not `print!`, which panics if the reader (such as `head`) has closed the pipe.
        stdout().write_all(listing().as_bytes()).map_err(|error| format!("the list was not read: {error}"))
    } else {
        drive(&options)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stress: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures time and memory of allocators on requests of servers, pools, short-lived threads and provers
#[derive(Debug, Parser)]
#[command(name = "cargo make stress", bin_name = "cargo make stress")]
struct Options {
    /// Run only these patterns, separated by commas; `--list` names them
    #[arg(long, value_delimiter = ',', hide_possible_values = true, value_parser = PossibleValuesParser::new(PATTERNS.iter().map(|pattern| pattern.name)))]
    patterns: Vec<String>,

    /// Run only these arms, separated by commas, and glibc, to which all are compared
    #[arg(long, value_delimiter = ',', value_parser = arm_names())]
    arms: Vec<String>,

    /// How often each arm runs each pattern
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Threads of patterns without a fixed number; the default is the number of processors, and at least 2
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Seed of the patterns' random numbers and of the order of the arms
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Run each pattern once before the clock starts, to measure a warm process without the cost of first touches
    #[arg(long)]
    warm: bool,

    /// List patterns and arms
    #[arg(long)]
    list: bool,

    /// Run a hundredth of each pattern once and measure nothing, as `cargo test --benches` does
    #[arg(long)]
    test: bool,

    /// Run only patterns whose names contain this text, which `cargo bench` passes on
    #[arg(hide = true)]
    filter: Option<String>,

    /// Measure. `cargo bench` sets this option, and `cargo test` does not; children inherit it.
    #[arg(long, hide = true)]
    bench: bool,

    /// Run the one pattern under the one arm in this process, and print a sample.
    #[arg(long, hide = true)]
    child: bool,
}

impl Options {
    /// Returns the selected patterns, in the order of the list.
    fn patterns(&self) -> Vec<&'static Pattern> {
        let filter = self.filter.as_deref().unwrap_or_default();
        let wanted = |name: &str| self.patterns.is_empty() || self.patterns.iter().any(|asked| asked == name);
        PATTERNS.iter().filter(|pattern| wanted(pattern.name) && pattern.name.contains(filter)).collect()
    }

    /// Returns the selected arms, in the order of the list. Except in a child, the baseline is always included.
    fn arms(&self) -> Vec<&'static Arm> {
        let is_asked = |arm: &&Arm| self.arms.iter().any(|asked| asked == arm.name);
        let is_wanted = |arm: &&Arm| self.arms.is_empty() || is_asked(arm) || (arm.name == BASELINE && !self.child);
        ARMS.iter().filter(is_wanted).chain(Some(&BROKEN).filter(is_asked)).collect()
    }

    /// Returns whether to measure; `false` in tests.
    fn measures(&self) -> bool {
        self.bench && !self.test
    }

    fn threads(&self) -> usize {
        let processors = || thread::available_parallelism().map_or(2, |threads| threads.get().max(2));
        self.threads.map_or_else(processors, usize::from)
    }
}

/// Returns the names that `--arms` accepts, including the hidden name of [`BROKEN`].
fn arm_names() -> PossibleValuesParser {
    let names = ARMS.iter().map(|arm| PossibleValue::new(arm.name));
    PossibleValuesParser::new(names.chain([PossibleValue::new(BROKEN.name).hide(true)]))
}

/// Returns the list of arms and patterns.
fn listing() -> String {
    let names = ARMS.iter().map(|arm| arm.name).collect::<Vec<_>>().join(", ");
    let mut text = format!("arms: {names}\n");
    for (is_small, title) in GROUPS {
        text += &format!("\npatterns, {title}:\n");
        for pattern in PATTERNS.iter().filter(|pattern| pattern.is_small == is_small) {
            text += &format!("  {:<20} {}\n", pattern.name, pattern.what);
        }
    }
    text
}

/// Runs the selected patterns and prints the report. Returns an error if any run failed.
fn drive(options: &Options) -> Result<(), String> {
    let (arms, patterns) = (options.arms(), options.patterns());
    if patterns.is_empty() {
        // Not an error: `cargo bench NAME` passes the name to every bench, and it may match a benchmark in another one.
        println!("stress: no pattern's name contains what was asked for; --list names them");
        return Ok(());
    }
    let rounds = if options.measures() { options.rounds } else { 1 };
    let none = || vec![Some(Vec::new()); arms.len()];
    let mut rows: Vec<_> = patterns.iter().map(|&pattern| Row { pattern, samples: none() }).collect();
    let mut failures = 0;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (index, row) in rows.iter_mut().enumerate() {
            // The order differs from round to round, so that effects of one arm on the next (warm caches, free memory) even out.
            let mut order: Vec<_> = arms.iter().zip(&mut row.samples).collect();
            stream(options.seed ^ u64::from(round), index).shuffle(&mut order);
            for (arm, samples) in order {
                let Some(earlier) = samples else { continue };
                match run(options, arm, row.pattern) {
                    Ok(sample) => earlier.push(sample),
                    Err(failure) => {
                        eprintln!("{failure}");
                        failures += 1;
                        *samples = None;
                    }
                }
            }
        }
    }
    if options.measures() {
        print!("{}", report::render(&arms, &rows, options.warm));
    } else {
        notices_damage(options)?;
        println!("stress: {} patterns under {} arms, a hundredth of each.", patterns.len(), arms.len());
        println!("`cargo make stress` measures.");
    }
    match failures {
        0 => Ok(()),
        _ => Err(format!("{failures} of the arms' patterns failed, as said above")),
    }
}

/// Runs one pattern under one arm in a child process, which is this binary again.
fn run(options: &Options, arm: &Arm, pattern: &Pattern) -> Result<Sample, String> {
    let failed = |why: String| format!("{} under {} failed: {why}", pattern.name, arm.name);
    let binary = env::current_exe().map_err(|error| failed(format!("this binary can't be found: {error}")))?;
    let mut command = Command::new(binary);
    command.args(["--child", "--arms", arm.name, "--patterns", pattern.name]);
    command.args(["--threads", &options.threads().to_string(), "--seed", &options.seed.to_string()]);
    command.args(options.measures().then_some("--bench")).args(options.warm.then_some("--warm"));
    let output = command.output().map_err(|error| failed(format!("its process could not be started: {error}")))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // If SIGALRM ended the process, the status names the signal.
        return Err(failed(format!("{}: {}", output.status, stderr.trim())));
    }
    eprint!("{stderr}");
    let line = String::from_utf8_lossy(&output.stdout);
    Sample::from_line(&line).ok_or_else(|| failed(format!("its process printed {line:?} where a sample was due")))
}

/// Returns an error unless the pattern `lifetimes` detects that [`BROKEN`] is broken.
fn notices_damage(options: &Options) -> Result<(), String> {
    let name = "lifetimes";
    let pattern = PATTERNS.iter().find(|pattern| pattern.name == name).ok_or(format!("{name} is not a pattern"))?;
    match run(options, &BROKEN, pattern) {
        Err(failure) if failure.contains("was written") => Ok(()),
        Err(failure) => Err(format!("damage was to be noticed, but {failure}")),
        Ok(_) => Err(format!("{name} did not notice that the allocator handed out memory that was in use")),
    }
}

/// The time limit of a run. A longer run is taken to hang: SIGALRM ends its process, and the driver reports the failure.
const LIMIT_SECONDS: u32 = 120;

/// The measurements of one run.
#[derive(Clone, Copy)]
struct Sample {
    wall_ns: u64,
    peak_rss_bytes: u64,
}

impl Sample {
    /// Parses the line that the child process prints.
    fn from_line(line: &str) -> Option<Self> {
        let (wall_ns, peak_rss_bytes) = line.trim().split_once(' ')?;
        Some(Self { wall_ns: wall_ns.parse().ok()?, peak_rss_bytes: peak_rss_bytes.parse().ok()? })
    }
}

/// Main function of the child process that [`run`] starts. Runs the one selected pattern under the one selected arm, and prints the sample.
///
/// The peak comes from the kernel (`VmHWM` of /proc/self/status, reset before the pattern begins), minus the resident size at that time.
/// Unlike `RssAnon`, it includes the few pages of code that a pattern loads; but sampling `RssAnon` would miss peaks between samples.
fn child(options: &Options) -> Result<(), String> {
    let (arms, patterns) = (options.arms(), options.patterns());
    let ([arm], [pattern]) = (&arms[..], &patterns[..]) else {
        return Err("a child runs one pattern under one arm".into());
    };
    // SAFETY: alarm(2) takes any number, and nothing else in this process uses the alarm.
    unsafe { libc::alarm(LIMIT_SECONDS) };
    let plan = Plan { threads: options.threads(), seed: options.seed, tiny: !options.measures() };
    let heap = Heap(arm.allocator);
    let rss_before = restart_peak();
    if options.warm {
        (pattern.run)(heap, &plan);
    }
    let begun = Instant::now();
    (pattern.run)(heap, &plan);
    println!("{} {}", begun.elapsed().as_nanos(), peak_rss_bytes().saturating_sub(rss_before));
    Ok(())
}
