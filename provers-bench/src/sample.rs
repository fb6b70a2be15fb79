//! Measures one proof: its time, the kernel's counters for this process, and the allocator's counters.
//!
//! Everything expensive (files under `/proc`, the list of counters) is read before the clock starts or after it stops.

use crate::machine::process::{self, Spent};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// Numbers that an allocator reports about itself, by name: counters, or gauges. Counters are totals since the process started; in a
/// sample, they are increases since the proof began.
pub type Counters = BTreeMap<String, u64>;

/// The measurements of one proof of one arm.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Wall-clock time of the proof.
    pub(crate) wall_ns: u64,
    /// CPU time of all threads in user mode.
    pub(crate) user_ns: u64,
    /// CPU time of all threads in the kernel.
    pub(crate) sys_ns: u64,
    /// Number of minor page faults.
    pub(crate) minflt: u64,
    /// Number of TLB shootdowns: interrupts by which one processor makes others drop unmapped addresses from their TLBs. The kernel counts
    /// them for the whole machine, not for this process. `None` on kernels that do not count them.
    pub(crate) tlb_shootdowns: Option<u64>,
    /// Resident memory after the proof was verified and dropped.
    pub(crate) rss_bytes: u64,
    /// Highest resident memory during the proof, or since the process started if the kernel cannot reset the peak.
    pub(crate) peak_rss_bytes: u64,
    /// Whether the verifier accepted the proof.
    pub(crate) verified: bool,
    /// Increase of the allocator's own counters during the proof.
    #[serde(default)]
    pub(crate) counters: Counters,
    /// The allocator's own gauges at the end of the proof: levels, not increases.
    #[serde(default)]
    pub(crate) gauges: Counters,
}

impl Sample {
    /// Returns the CPU time of all threads, user and kernel.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.user_ns + self.sys_ns
    }

    /// Completes the sample of a timed proof, after the proof was verified and dropped. Returns the sample and, if the verifier rejected
    /// the proof, the reason.
    pub(crate) fn at_rest(mut self, verification: anyhow::Result<()>) -> anyhow::Result<Proved> {
        let refusal = verification.err().map(|error| format!("{error:#}"));
        (self.rss_bytes, self.verified) = (process::rss_bytes()?, refusal.is_none());
        Ok((self, refusal))
    }
}

/// A sample, and the reason if the verifier rejected the proof.
pub(crate) type Proved = (Sample, Option<String>);

/// A proof that is being timed.
pub(crate) struct Meter {
    counters: fn() -> Counters,
    counted: Counters,
    tlb_shootdowns: Option<u64>,
    spent: Spent,
    clock: Instant,
}

impl Meter {
    /// Prepares the measurement, and starts the clock last.
    pub(crate) fn start(counters: fn() -> Counters) -> anyhow::Result<Self> {
        process::reset_peak();
        let tlb_shootdowns = tlb_shootdowns();
        let counted = counters();
        let spent = Spent::by_this_process()?;
        Ok(Self { counters, counted, tlb_shootdowns, spent, clock: Instant::now() })
    }

    /// Returns the time on the clock so far.
    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Stops the clock first, then takes the other measurements. [`Sample::at_rest`] completes the sample.
    pub(crate) fn stop(self, gauges: fn() -> Counters) -> anyhow::Result<Sample> {
        let wall = self.clock.elapsed();
        let spent = Spent::by_this_process()?.since(self.spent);
        let counters = grown(&self.counted, (self.counters)());
        let tlb_shootdowns = tlb_shootdowns().zip(self.tlb_shootdowns);
        let gauges = gauges();
        // Read before verification, which may need more memory than the proof.
        let peak_rss_bytes = process::peak_rss_bytes()?;
        Ok(Sample {
            wall_ns: wall.as_nanos() as u64,
            user_ns: spent.user_ns,
            sys_ns: spent.sys_ns,
            minflt: spent.minflt,
            tlb_shootdowns: tlb_shootdowns.map(|(after, before)| after.saturating_sub(before)),
            peak_rss_bytes,
            counters,
            gauges,
            ..Sample::default()
        })
    }
}

/// Returns the number of TLB shootdowns on all processors since the machine started; `None` if the kernel does not count them, as on arm64,
/// which needs no such interrupts.
fn tlb_shootdowns() -> Option<u64> {
    sum_of_row(&fs::read_to_string("/proc/interrupts").ok()?, "TLB:")
}

/// Sums the counts of the row `name`, which has one count for each processor, followed by a description.
fn sum_of_row(table: &str, name: &str) -> Option<u64> {
    let counts = table.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
    Some(counts.split_whitespace().map_while(|count| count.parse::<u64>().ok()).sum())
}

fn grown(before: &Counters, after: Counters) -> Counters {
    let growth = |name: &String, value: u64| value.saturating_sub(before.get(name).copied().unwrap_or(0));
    after.into_iter().map(|(name, value)| (name.clone(), growth(&name, value))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the sample of a verified proof that took `wall_ns`, on one thread.
    pub(crate) fn sample(wall_ns: u64, counters: Counters) -> Sample {
        let memory = 100_000_000;
        Sample {
            wall_ns,
            user_ns: wall_ns,
            minflt: 10,
            rss_bytes: memory,
            peak_rss_bytes: 2 * memory,
            verified: true,
            counters,
            ..Sample::default()
        }
    }

    /// A sample must show only the faults and memory of its own proof: if 64 MiB are touched, they must appear in one sample and not in the
    /// next.
    #[test]
    fn a_sample_shows_what_happened_between_start_and_stop() {
        let _alone = process::tests::alone();
        let pages = 64 << 20 >> 12;
        let meter = Meter::start(Counters::new).unwrap();
        let filled = std::hint::black_box(vec![1_u8; pages << 12]);
        let busy = meter.stop(Counters::new).unwrap();
        drop(filled);
        let idle = Meter::start(Counters::new).unwrap().stop(Counters::new).unwrap();
        assert!(busy.peak_rss_bytes >= 64 << 20, "{busy:?}");
        assert!(busy.minflt > 0 && busy.minflt > idle.minflt, "{busy:?} {idle:?}");
        assert!(busy.wall_ns > idle.wall_ns);
        let is_reset = process::reset_peak();
        assert!(!is_reset || idle.peak_rss_bytes + (32 << 20) < busy.peak_rss_bytes, "{busy:?} {idle:?}");
    }

    #[test]
    fn interrupts_are_summed_over_processors() {
        let table = "           CPU0       CPU1\n  0:  9  0  IO-APIC  2-edge\nTLB:  40  2   TLB shootdowns\n";
        assert_eq!((sum_of_row(table, "TLB:"), sum_of_row(table, "NMI:")), (Some(42), None));
    }
}
