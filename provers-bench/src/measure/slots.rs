//! Proofs at fixed times, as a node or a service makes them: each arm takes its turn alone on the machine, makes one proof
//! at each tick, and idles in between.

use crate::measure::arm_runner::{ArmRunner, Trial, outcome_of};
use crate::measure::lockstep::{ALONE_PAUSE, Lockstep, PointRun, limit};
use crate::measure::rss_watch::RssWatch;
use crate::plan::Slots;
use crate::results::format;
use crate::results::record::{Ended, Outcome};
use crate::results::stats::whole_median;
use rand::RngExt;
use std::time::{Duration, Instant};

/// A proof that starts this much after its tick is late: the one before took longer than its slot.
const LATE: Duration = Duration::from_millis(100);

impl<'a> Lockstep<'a> {
    /// One turn of every arm, in random order. Returns the reason if the run ends here.
    pub(super) fn turns(
        &mut self,
        run: &mut PointRun<'a>,
        process: u32,
        slots: Slots,
    ) -> anyhow::Result<Option<Ended>> {
        run.stack_bytes = run.randomness.random();
        // All arms prove the same inputs.
        let inputs: Vec<u64> = (0..slots.proofs).map(|_| run.randomness.random()).collect();
        for (place, index) in run.order().into_iter().enumerate() {
            if run.schedule.is_out_of_time() {
                return Ok(Some(Ended::OutOfTime));
            }
            let first = Trial { process, round: 0, order: place as u32, input: inputs[0] };
            let before = run.runners[index].result.samples.len();
            let ended = self.turn_of(run, index, first, slots, &inputs);
            self.keep_samples(run, index, before)?;
            match ended {
                Ok(()) => {}
                Err(Outcome::Interrupted) => {
                    let is_short = |runner: &&mut ArmRunner<'_>| (runner.result.samples.len() as u64) < runner.expected;
                    for runner in run.runners.iter_mut().filter(|runner| runner.takes_part()).filter(is_short) {
                        runner.leave(Outcome::Interrupted);
                    }
                    return Ok(Some(Ended::Interrupted));
                }
                Err(outcome) => self.leave(&mut run.runners[index], outcome),
            }
        }
        run.warm_rounds += slots.proofs - 1;
        let is_any_left = run.runners.iter().any(|runner| runner.takes_part());
        Ok((!is_any_left).then_some(Ended::NoArms))
    }

    /// The turn of one arm, after a pause and in a process of its own. The error says why the arm drops out.
    fn turn_of(
        &mut self,
        run: &mut PointRun<'a>,
        index: usize,
        first: Trial,
        slots: Slots,
        inputs: &[u64],
    ) -> Result<(), Outcome> {
        let limit = self.plan.timeout.unwrap_or_else(|| limit(run.point.workload, run.slowest));
        let what = format!("{}, a proof every {}", run.size(), format::time(slots.every.as_nanos() as u64));
        let (point, stack_bytes, earlier) = (run.point, run.stack_bytes, run.warm_rounds);
        let runner = &mut run.runners[index];
        let label = runner.contestant.label.clone();
        self.progress.proving(&what, &label);
        self.interrupt.sleep(ALONE_PAUSE.min(slots.every * 3));
        runner
            .start(&self.folder, self.plan, point, stack_bytes, &self.interrupt, limit)
            .map_err(|failure| outcome_of(&failure, first))?;
        let Some(pid) = runner.pid() else { return Ok(()) };
        let (watch, begun) = (RssWatch::start(pid), Instant::now());
        let (mut starts, mut late) = (Vec::new(), 0);
        for (number, &input) in (0..).zip(inputs) {
            let tick = slots.every * number;
            self.interrupt.sleep(tick.saturating_sub(begun.elapsed()));
            if self.interrupt.is_raised() {
                return Err(Outcome::Interrupted);
            }
            let start = begun.elapsed();
            late += u32::from(start > tick + LATE);
            starts.push(start);
            let round = if number == 0 { 0 } else { earlier + number };
            runner.prove_on_time(Trial { round, input, ..first }, limit)?;
            run.slowest = run.slowest.max(begun.elapsed() - start);
        }
        let end = (slots.every * slots.proofs).max(begun.elapsed());
        self.interrupt.sleep(end.saturating_sub(begun.elapsed()));
        runner.turn_ended(&watch.stop(), &starts, end, first.process == 0);
        if late > 0 {
            let of = slots.proofs;
            self.progress
                .note(&format!("{label}: {late} of {of} proofs began late, because the one before took longer"));
        }
        let times = runner.result.samples.iter().rev().take(starts.len()).map(|proof| proof.sample.wall_ns);
        let median = format::time(whole_median(times).unwrap_or(0));
        self.progress.round_done(&what, &format!("{label} {median} in the median"));
        runner.end_child(first)
    }
}
