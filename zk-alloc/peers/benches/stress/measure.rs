//! One run of one pattern under one arm, in the process that the driver starts for it.
//!
//! The peak comes from the kernel (`VmHWM` of /proc/self/status, reset before the pattern begins), minus the resident
//! size at that time. Samples of `RssAnon` would leave out the few pages of code that a pattern loads, but would miss
//! peaks between samples.
#![allow(unsafe_code, reason = "calls alarm(2)")]

use std::fs;
use std::time::Instant;

use crate::cli::Options;
use crate::heap::Heap;
use crate::patterns::Plan;

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
        let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        let sample = Self { wall_ns: next()?, peak_rss_bytes: next()?, minor_faults: next()? };
        numbers.next().is_none().then_some(sample)
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
    // If the kernel refuses, the peak so far remains, which is small in a process that has done nothing yet.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let rss_before = status_bytes("VmRSS:")?;
    if options.warm {
        (pattern.run)(heap, &plan);
    }
    let faults_before = minor_faults()?;
    let begun = Instant::now();
    (pattern.run)(heap, &plan);
    let wall_ns = begun.elapsed().as_nanos() as u64;
    let sample = Sample {
        wall_ns,
        minor_faults: minor_faults()? - faults_before,
        peak_rss_bytes: status_bytes("VmHWM:")?.saturating_sub(rss_before),
    };
    println!("{}", sample.to_line());
    Ok(())
}

/// A line of /proc/self/status that is in kB.
fn status_bytes(name: &str) -> Result<u64, String> {
    let path = "/proc/self/status";
    let text = fs::read_to_string(path).map_err(|error| format!("the peak is read from {path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("{path} has no line `{name} ... kB`"))
}

/// The tenth field of /proc/self/stat (proc(5)): faults of all threads, including those that ended.
fn minor_faults() -> Result<u64, String> {
    let path = "/proc/self/stat";
    let text = fs::read_to_string(path).map_err(|error| format!("the faults are read from {path}: {error}"))?;
    // The second field holds the program's name in parentheses, and may contain anything. The third field follows it.
    let after_name = text.rsplit_once(')').map(|(_, rest)| rest);
    let field = after_name.and_then(|rest| rest.split_whitespace().nth(7)?.parse().ok());
    field.ok_or_else(|| format!("{path} has no tenth field"))
}
