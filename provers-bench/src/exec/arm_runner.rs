//! One arm: an allocator, and the results of the command's runs under it.

use super::libraries::Candidate;
use super::process::{Mark, Ran};
use super::process_tree::{Mapped, Spent};
use crate::machine::build_info;
use crate::measure::arm_runner::{Trial, result_of};
use crate::measure::rss_watch::highest;
use crate::protocol::Identity;
use crate::results::record::{ArmResult, Outcome, Proof, RssPoint};
use crate::sample::{Counters, Sample};
use std::time::Duration;

/// Most memory readings that a run retains. A longer series is split into groups, and each group retains its highest
/// reading.
const MAX_POINTS: usize = 400;
/// Messages of loaders and allocators that refuse a library or a setting.
const COMPLAINTS: &[&str] = &["ERROR: ld.so: object", "<jemalloc>: "];

/// An arm and its results.
pub(super) struct ArmRunner {
    pub(super) candidate: Candidate,
    pub(super) result: ArmResult,
    /// Runs so far.
    pub(super) runs: u32,
    /// The most programs inspected in a run, and how many of them had the library.
    mapped: Option<(usize, usize)>,
}

impl ArmRunner {
    pub(super) fn new(candidate: Candidate) -> Self {
        let settings = candidate.variables().iter().map(|(name, value)| format!("{name}={value}")).collect();
        let version =
            candidate.package.as_ref().map_or_else(String::new, |(package, version)| format!("({package} {version})"));
        let identity = Identity {
            allocator: candidate.arm.trim_end_matches("-tuned").into(),
            version,
            settings,
            confirmed: Vec::new(),
            peak_is_per_proof: true,
            build: build_info::current(),
        };
        let mut result = result_of(&candidate.label, &candidate.arm);
        result.outcome = candidate.trouble.clone().unwrap_or(Outcome::Finished);
        // An arm that never starts has no identity.
        result.identity = candidate.trouble.is_none().then_some(identity);
        Self { candidate, result, runs: 0, mapped: None }
    }

    pub(super) fn takes_part(&self) -> bool {
        self.result.outcome == Outcome::Finished
    }

    /// Adds a successful run: as one sample, or as one sample for each of its first `intervals` intervals between
    /// marks.
    pub(super) fn add(&mut self, ran: &Ran, trial: Trial, intervals: Option<usize>) {
        self.runs += 1;
        match intervals {
            None => self.result.samples.push(whole(ran, trial)),
            Some(intervals) => self.result.samples.extend(between(&ran.marks, trial, intervals)),
        }
        if self.result.rss_over_time.is_empty() {
            let points = highest(&ran.rss_over_time, MAX_POINTS);
            let point = |(at_ms, rss_bytes)| RssPoint { round: trial.round, at_ms, rss_bytes };
            self.result.rss_over_time = points.map(point).collect();
        }
        if let Mapped::In { programs, of } = ran.mapped {
            self.mapped = self.mapped.max(Some((of, programs)));
        }
        self.result.stderr.clone_from(&ran.stderr);
    }

    /// Why a run does not count, judged by the library's mapping and by complaints on stderr.
    pub(super) fn objection(&self, ran: &Ran) -> Option<String> {
        let complaint = ran.stderr.iter().find(|line| COMPLAINTS.iter().any(|words| line.contains(words)));
        if let Some(line) = complaint.filter(|_| !self.candidate.variables().is_empty()) {
            return Some(format!("it did not take: {line}"));
        }
        match (&ran.mapped, self.candidate.file()) {
            (Mapped::NotIn(program), Some(file)) => Some(format!(
                "{file} was not mapped in {}, which has much of the memory (/proc/PID/maps)",
                program.display()
            )),
            _ => None,
        }
    }

    /// Records at the end whether the library was mapped. Fails an arm whose processes were all too short to be
    /// inspected.
    pub(super) fn conclude(&mut self) {
        let (Some(file), true) = (self.candidate.file(), self.takes_part() && self.runs > 0) else { return };
        match self.mapped {
            Some((of, programs)) => {
                let seen = format!("{file} mapped in {programs} of {of} programs of a run");
                self.result.identity.iter_mut().for_each(|identity| identity.confirmed = vec![seen.clone()]);
            }
            None => {
                let reason = format!("no process lived long enough to see whether {file} was mapped");
                self.result.outcome = Outcome::Failed { round: self.runs, reason };
            }
        }
    }
}

fn sample(wall: Duration, spent: Spent, rss_bytes: u64, peak_rss_bytes: u64) -> Sample {
    Sample {
        wall_ns: wall.as_nanos() as u64,
        user_ns: spent.user_ns,
        sys_ns: spent.sys_ns,
        minflt: spent.minflt,
        tlb_shootdowns: None,
        rss_bytes,
        peak_rss_bytes,
        // A run that does not count has no sample.
        verified: true,
        counters: Counters::from([("major_faults".to_owned(), spent.majflt)]),
        gauges: Counters::new(),
    }
}

fn whole(ran: &Ran, trial: Trial) -> Proof {
    let mut sample = sample(ran.wall, ran.spent, ran.last_rss_bytes, ran.peak_rss_bytes);
    sample.gauges.insert("programs".into(), ran.programs as u64);
    Proof { process: trial.process, round: trial.round, order: trial.order, byte_seconds: None, sample }
}

/// The samples of the first `intervals` intervals between marks. The first interval is cold. Warm intervals are
/// numbered across all runs.
fn between(marks: &[Mark], trial: Trial, intervals: usize) -> impl Iterator<Item = Proof> {
    let process = trial.process;
    let warm_each = intervals.saturating_sub(1) as u32;
    (0_u32..).zip(marks.windows(2)).take(intervals).filter_map(move |(index, pair)| {
        let [from, to] = pair else { return None };
        let sample = sample(to.at - from.at, to.spent.since(from.spent), to.rss_bytes, to.peak_rss_bytes);
        let round = if index == 0 { 0 } else { process * warm_each + index };
        Some(Proof { process, round, order: trial.order, byte_seconds: None, sample })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(round: u32) -> Trial {
        Trial { process: round - 1, round, order: 0, input: 0 }
    }

    fn mark(at_ms: u64) -> Mark {
        let spent = Spent { user_ns: at_ms * 1_000_000, ..Spent::default() };
        Mark { at: Duration::from_millis(at_ms), spent, rss_bytes: at_ms, peak_rss_bytes: 2 * at_ms }
    }

    /// Ratios pair the intervals of arms by number. So a run's intervals must have the same numbers under every arm,
    /// and no number may occur twice.
    #[test]
    fn the_first_interval_of_a_run_is_cold_and_the_others_are_numbered_over_all_runs() {
        let marks: Vec<_> = [5, 105, 135, 165, 195].map(mark).into();
        let rounds =
            |round| -> Vec<_> { between(&marks, trial(round), 3).map(|proof| (proof.process, proof.round)).collect() };
        assert_eq!(rounds(1), [(0, 0), (0, 1), (0, 2)], "a fourth is not paired with anything");
        assert_eq!(rounds(2), [(1, 0), (1, 3), (1, 4)]);
        let cold = between(&marks, trial(1), 3).next().unwrap().sample;
        assert_eq!((cold.wall_ns, cold.user_ns, cold.peak_rss_bytes), (100_000_000, 100_000_000, 210));
    }
}
