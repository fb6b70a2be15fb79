//! One run of one pattern under one arm, in the process that the driver starts for it.
//!
//! The peak comes from the kernel (`VmHWM` of /proc/self/status, reset before the pattern begins), minus the resident
//! size at that time. Samples of `RssAnon` would leave out the few pages of code that a pattern loads, but would miss
//! peaks between samples.
#![allow(unsafe_code, reason = "calls alarm(2) and getrusage(2)")]

use std::time::Instant;

use crate::cli::Options;
use crate::heap::Heap;
use crate::patterns::Plan;
use crate::support::{peak_rss_bytes, restart_peak};

/// A run that takes this long hangs. SIGALRM ends the process, and the driver reports it.
const LIMIT_SECONDS: u32 = 120;

/// The figures of one run.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) wall_ns: u64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) minor_faults: u64,
}

impl Sample {
    /// The line that the child prints.
    fn to_line(self) -> String {
        format!("{} {} {}", self.wall_ns, self.peak_rss_bytes, self.minor_faults)
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let numbers: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [wall_ns, peak_rss_bytes, minor_faults] = numbers[..] else { return None };
        Some(Self { wall_ns, peak_rss_bytes, minor_faults })
    }
}

/// Runs the one pattern under the one arm that the hidden arguments name, and prints the sample.
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
    let faults_before = minor_faults();
    let begun = Instant::now();
    (pattern.run)(heap, &plan);
    let wall_ns = begun.elapsed().as_nanos() as u64;
    let peak_rss_bytes = peak_rss_bytes().saturating_sub(rss_before) as u64;
    let sample = Sample { wall_ns, peak_rss_bytes, minor_faults: minor_faults() - faults_before };
    println!("{}", sample.to_line());
    Ok(())
}

/// Page faults of all threads so far, including those that ended.
fn minor_faults() -> u64 {
    // SAFETY: all zeroes is a valid value, and a place for the answer.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    usage.ru_minflt as u64
}
