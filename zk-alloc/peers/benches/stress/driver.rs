//! Runs rounds in lockstep. In each round, every arm runs every pattern, each in a process of its own. The arms of a
//! pattern run one after the other in random order, so a round's ratios share the state of the machine.
#![allow(unsafe_code, reason = "calls alarm(2)")]

use std::env;
use std::process::Command;
use std::time::Instant;

use crate::arms::{Arm, BROKEN};
use crate::cli::Options;
use crate::heap::Heap;
use crate::patterns::{PATTERNS, Pattern, Plan, stream};
use crate::report::{self, Results};
use crate::support::{peak_rss_bytes, restart_peak};

/// Runs the selected patterns, and prints the report. Returns an error if any run failed.
pub(crate) fn drive(options: &Options) -> Result<(), String> {
    let (arms, patterns) = (options.arms(), options.patterns());
    if patterns.is_empty() {
        // Not an error: `cargo bench NAME` passes the name to every bench, and it may belong to another.
        println!("stress: no pattern's name contains what was asked for; --list names them");
        return Ok(());
    }
    let rounds = if options.measures() { options.rounds } else { 1 };
    let mut results = Results::new(arms.clone(), patterns.clone());
    let mut failures = 0;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (index, pattern) in patterns.iter().enumerate() {
            // Each round has its own order, so that the effects of one arm on the next (warm caches, free memory) even
            // out.
            let mut order: Vec<usize> = (0..arms.len()).collect();
            stream(options.seed ^ u64::from(round), index).shuffle(&mut order);
            for arm in order {
                if results.has_failed(arm, index) {
                    continue;
                }
                let sample = run(options, arms[arm], pattern).inspect_err(|failure| eprintln!("{failure}"));
                failures += u32::from(sample.is_err());
                results.add(arm, index, sample.ok());
            }
        }
    }
    if options.measures() {
        print!("{}", report::render(&results, options.warm));
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

/// Runs one pattern in a process of its own, which is this binary again.
fn run(options: &Options, arm: &Arm, pattern: &Pattern) -> Result<Sample, String> {
    let failed = |why: String| format!("{} under {} failed: {why}", pattern.name, arm.name);
    let binary = env::current_exe().map_err(|error| failed(format!("this binary can't be found: {error}")))?;
    let mut command = Command::new(binary);
    command.args(["--child", "--arms", arm.name, "--patterns", pattern.name]);
    command.args(["--threads", &options.threads().to_string(), "--seed", &options.seed.to_string()]);
    if !options.measures() {
        command.arg("--tiny");
    }
    if options.warm {
        command.arg("--warm");
    }
    let output = command.output().map_err(|error| failed(format!("its process could not be started: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // The status of a process that SIGALRM ended names the signal.
        return Err(failed(format!("{}: {}", output.status, said.trim())));
    }
    eprint!("{said}");
    let line = String::from_utf8_lossy(&output.stdout);
    Sample::from_line(&line).ok_or_else(|| failed(format!("its process printed {line:?} where a sample was due")))
}

/// Returns an error unless the patterns detect that an allocator is broken.
fn notices_damage(options: &Options) -> Result<(), String> {
    let name = "lifetimes";
    let pattern = PATTERNS.iter().find(|pattern| pattern.name == name).ok_or(format!("{name} is not a pattern"))?;
    match run(options, &BROKEN, pattern) {
        Err(failure) if failure.contains("was written") => Ok(()),
        Err(failure) => Err(format!("damage was to be noticed, but {failure}")),
        Ok(_) => Err(format!("{name} did not notice that the allocator handed out memory that was in use")),
    }
}

/// A run that takes this long hangs. SIGALRM ends the process, and the driver reports it.
const LIMIT_SECONDS: u32 = 120;

/// The figures of one run.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) wall_ns: u64,
    pub(crate) peak_rss_bytes: u64,
}

impl Sample {
    /// From the line that the child prints.
    fn from_line(line: &str) -> Option<Self> {
        let (wall_ns, peak_rss_bytes) = line.trim().split_once(' ')?;
        Some(Self { wall_ns: wall_ns.parse().ok()?, peak_rss_bytes: peak_rss_bytes.parse().ok()? })
    }
}

/// Runs the one pattern under the one arm that the hidden arguments name, and prints the sample: the process that [`run`] starts.
///
/// The peak comes from the kernel (`VmHWM` of /proc/self/status, reset before the pattern begins), minus the resident
/// size at that time. Samples of `RssAnon` would leave out the few pages of code that a pattern loads, but would miss
/// peaks between samples.
pub(crate) fn child(options: &Options) -> Result<(), String> {
    let (arms, patterns) = (options.arms(), options.patterns());
    let ([arm], [pattern]) = (&arms[..], &patterns[..]) else {
        return Err("a child runs one pattern under one arm".into());
    };
    // SAFETY: alarm(2) takes any number, and nothing else in this process uses it.
    unsafe { libc::alarm(LIMIT_SECONDS) };
    let plan = Plan { threads: options.threads(), seed: options.seed, tiny: options.tiny };
    let heap = Heap::new(arm.allocator);
    let rss_before = restart_peak();
    if options.warm {
        (pattern.run)(heap, &plan);
    }
    let begun = Instant::now();
    (pattern.run)(heap, &plan);
    println!("{} {}", begun.elapsed().as_nanos(), peak_rss_bytes().saturating_sub(rss_before));
    Ok(())
}
