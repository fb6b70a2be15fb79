//! Whether another round or another arm may start: rounds and processes, the deadline, memory, and hung runs. Only the
//! deadline check reads the clock.

use crate::plan::Plan;
use crate::results::format;
use crate::results::record::Ended;
use crate::workloads::WorkloadSpec;
use std::time::Instant;

/// A proof, or a run of a command, that takes this many times as long as the slowest so far counts as hung.
pub(crate) const HANG_FACTOR: u32 = 20;

/// The rounds of one point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Requested warm rounds.
    pub(crate) rounds: u32,
    /// Processes that share the rounds. With a precision to reach, more processes may follow.
    pub(crate) processes: u32,
    precision: Option<f64>,
    deadline: Option<Instant>,
}

impl Schedule {
    /// The rounds of `spec` under `plan`. No round starts after `deadline`.
    pub(crate) fn new(plan: &Plan, spec: &WorkloadSpec, deadline: Option<Instant>) -> Self {
        let (rounds, processes) = (plan.rounds, plan.processes(spec));
        Self { rounds, processes, precision: plan.precision, deadline }
    }

    /// Rounds that each run in their own process.
    pub(crate) fn of_runs(runs: u32, precision: Option<f64>, deadline: Option<Instant>) -> Self {
        Self { rounds: runs, processes: runs, precision, deadline }
    }

    /// Warm rounds of the process with this number. The processes share the rounds as evenly as possible.
    pub(crate) fn warm_rounds(&self, process: u32) -> u32 {
        let (rounds, processes) = (self.rounds, self.processes);
        if process < processes {
            rounds / processes + u32::from(process < rounds % processes)
        } else {
            rounds.div_ceil(processes)
        }
    }

    /// Proofs of an arm that takes part to the end.
    pub(crate) fn proofs(&self) -> u64 {
        u64::from(self.rounds) + u64::from(self.processes)
    }

    /// Why the rounds end after `done` processes; `None` if they go on. `widest` returns the widest interval so far.
    pub(crate) fn ends_after(&self, done: u32, widest: impl FnOnce() -> f64) -> Option<Ended> {
        if done < self.processes {
            return None;
        }
        match self.precision {
            None => Some(Ended::AllRounds),
            Some(precision) => (widest() <= precision).then_some(Ended::Precise),
        }
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_out_of_time(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// The children of all arms stay alive at the same time, so their peaks add up.
pub(crate) struct Budget {
    /// Available memory before the first child starts. `None` if the kernel does not report it; then every arm is
    /// admitted.
    available_bytes: Option<u64>,
    /// Peak RSS of each cold proof so far.
    peaks: Vec<u64>,
}

impl Budget {
    /// A budget of `available_bytes`, as the kernel reports it before the first child starts.
    pub(crate) fn of(available_bytes: Option<u64>) -> Self {
        Self { available_bytes, peaks: Vec::new() }
    }

    /// Records an admitted arm, which peaks at `peak_bytes`.
    pub(crate) fn take(&mut self, peak_bytes: u64) {
        self.peaks.push(peak_bytes);
    }

    /// Checks whether one more arm fits. It is assumed to need as much memory as the largest arm so far. While the
    /// baseline still waits, the arm must leave room for it, because ratios need the baseline. The error is the reason.
    pub(crate) fn admits(&self, baseline_waits: bool) -> Result<(), String> {
        let (Some(available), Some(&expected)) = (self.available_bytes, self.peaks.iter().max()) else { return Ok(()) };
        let taken: u64 = self.peaks.iter().sum();
        let needed = expected * (1 + u64::from(baseline_waits));
        if taken + needed <= available {
            return Ok(());
        }
        let [expected, taken, available] = [expected, taken, available].map(format::bytes);
        Err(format!("needs about {expected} of memory, the other arms peak at {taken}, {available} were available"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn schedule(rounds: u32, processes: u32, precision: Option<f64>) -> Schedule {
        Schedule { rounds, processes, precision, deadline: None }
    }

    /// A lost or repeated round would break `--rounds`.
    #[test]
    fn the_processes_share_all_rounds_evenly() {
        for (rounds, processes) in [(12, 6), (13, 4), (3, 3), (1, 1), (10, 7)] {
            let schedule = schedule(rounds, processes, None);
            let shares: Vec<_> = (0..processes).map(|process| schedule.warm_rounds(process)).collect();
            assert_eq!(shares.iter().sum::<u32>(), rounds);
            let (fewest, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(*fewest >= 1 && most - fewest <= 1, "{shares:?}");
            assert_eq!(schedule.warm_rounds(processes), *most, "a further process is none of the smaller ones");
        }
    }

    #[test]
    fn precision_adds_processes_until_it_is_reached_and_never_takes_any_away() {
        let plain = schedule(12, 6, None);
        assert_eq!([5, 6].map(|done| plain.ends_after(done, || unreachable!())), [None, Some(Ended::AllRounds)]);
        let precise = schedule(12, 6, Some(0.02));
        assert_eq!(precise.ends_after(5, || 0.0), None);
        assert_eq!([0.021, 0.02].map(|widest| precise.ends_after(6, || widest)), [None, Some(Ended::Precise)]);
        assert_eq!(precise.ends_after(60, || f64::INFINITY), None);
    }

    #[test]
    fn time_is_over_at_the_deadline_and_never_without_one() {
        let with = |deadline| Schedule { deadline, ..schedule(1, 1, None) };
        let now = Instant::now();
        assert!(!with(None).is_out_of_time() && with(Some(now)).is_out_of_time());
        assert!(!with(Some(now + Duration::from_secs(60))).is_out_of_time());
    }

    /// Too many children would trigger the OOM killer. A run that leaves out the baseline shows no ratio.
    #[test]
    fn an_arm_is_admitted_while_its_peak_and_a_waiting_baselines_fit() {
        let budget = |available_bytes, peaks: &[u64]| {
            let mut budget = Budget::of(available_bytes);
            peaks.iter().for_each(|&peak| budget.take(peak));
            budget
        };
        assert!(budget(Some(10), &[]).admits(true).is_ok(), "nothing to go by");
        assert!(budget(None, &[100]).admits(true).is_ok(), "the kernel does not say");
        assert!(budget(Some(25), &[10]).admits(false).is_ok());
        assert!(budget(Some(25), &[10]).admits(true).is_err(), "would take the baseline's place");
        assert!(budget(Some(25), &[10, 8]).admits(false).is_err());
    }
}
