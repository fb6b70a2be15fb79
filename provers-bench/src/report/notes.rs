//! Notes that a reader needs with the figures, one sentence each.

use crate::results::record::{ArmResult, Ended, Outcome, Run, WorkloadResult};
use crate::results::stats::Verdict;
use crate::results::{format, view};

/// On an idle machine, warm proofs take the same time within a few percent. A larger spread means a busy machine.
const BUSY_SPREAD: f64 = 1.5;

/// Notes that the machine was busy. Then the times of two arms may contradict their ratio, and the ratio is more
/// reliable.
fn busy(workload: &WorkloadResult) -> Option<String> {
    let baseline = workload.arms.iter().find(|arm| arm.label == workload.baseline && arm.summary.is_some())?;
    let warm = view::warm(baseline).map(|proof| proof.sample.wall_ns);
    let (fastest, slowest) = (warm.clone().min()?, warm.max()?);
    (slowest as f64 > BUSY_SPREAD * fastest as f64).then(|| {
        format!(
            "The machine was busy: {} of {} took {} to {}. Ratios are taken within a round and hold; times of different \
             rounds don't compare.",
            workload.timed.warm(),
            workload.baseline,
            format::time(fastest),
            format::time(slowest)
        )
    })
}

/// If our wall time shows no difference, lists the steadier figures that do.
fn steady(workload: &WorkloadResult) -> Option<String> {
    let (arm, ours) = view::ours(workload)?;
    let (_, reference) = view::baseline(workload)?;
    if ours.verdict != Some(Verdict::NoDifferenceShown) {
        return None;
    }
    let base = &workload.baseline;
    let cpu = view::cpu_verdict(ours).map(|(_, ratio)| format!("CPU time {} of {base}'s", format::ratio(&ratio)));
    let (faults, before) = (ours.warm_minflt?, reference.warm_minflt?);
    let faults = (2 * faults <= before && before > 0).then(|| {
        let noun = if faults == 1 { "page fault" } else { "page faults" };
        let [faults, before] = [faults, before].map(format::count);
        format!("{faults} {noun} {} against {before}", workload.timed.each())
    });
    let shown: Vec<_> = cpu.into_iter().chain(faults).collect();
    if shown.is_empty() {
        return None;
    }
    let peak = ours.peak_rss_ratio.map_or_else(String::new, |ratio| format!("; peak RSS {ratio:.2} of {base}'s"));
    Some(format!(
        "{}: these rounds show no difference in wall time; figures that scatter less do: {}{peak}",
        arm.label,
        shown.join(", ")
    ))
}

/// All notes on `workload`.
pub(super) fn notes(run: &Run, workload: &WorkloadResult) -> Vec<String> {
    let mut notes: Vec<String> = busy(workload).into_iter().chain(steady(workload)).chain(ended(workload)).collect();
    notes.extend(workload.arms.iter().flat_map(|arm| of_arm(workload, arm)));
    notes.extend(
        workload.live_peak_bytes.map(|bytes| format!("Live at once, as zk-alloc counts: {}", format::bytes(bytes))),
    );
    if run.machine.build.profile != "release" {
        notes.push(format!("Built as {}, not as release: not for comparing times.", run.machine.build.profile));
    }
    notes
}

fn of_arm(workload: &WorkloadResult, arm: &ArmResult) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(format::outcome(&arm.outcome).map(|text| format!("{}: {text}", arm.label)));
    if let (Outcome::Failed { .. }, Some(why)) = (&arm.outcome, &arm.known_to_fail) {
        notes.push(format!("{}: known to fail, and no failure of the run: {why}", arm.label));
    }
    if let Some(calls) = arm.summary.as_ref().and_then(|summary| summary.warm_system_calls) {
        notes.push(format!("{}: system calls of the arena in a warm proof: {}", arm.label, format::count(calls)));
    }
    if let Some(identity) = &arm.identity {
        if !identity.settings.is_empty() {
            notes.push(format!("{}: ran with {}", arm.label, identity.settings.join(" ")));
        }
        if !identity.confirmed.is_empty() {
            let who = if workload.timed.is_of_command() { "" } else { "the allocator confirmed " };
            notes.push(format!("{}: {who}{}", arm.label, identity.confirmed.join(", ")));
        }
        if !identity.peak_is_per_proof {
            notes.push(format!("{}: peak RSS is since the process started, not one proof's", arm.label));
        }
    }
    notes
}

/// Why there were more or fewer rounds than requested.
fn ended(workload: &WorkloadResult) -> Option<String> {
    let intervals = workload.arms.iter().filter_map(|arm| arm.summary.as_ref()?.wall_ratio?.interval);
    let widest = intervals.map(|interval| interval.high - interval.low).reduce(f64::max);
    let width = widest.map_or("there is no interval yet".into(), |widest| {
        format!("the widest interval is {:.1}% of {}'s time", 100.0 * widest, workload.baseline)
    });
    match workload.ended {
        Ended::AllRounds | Ended::Interrupted => None,
        Ended::Precise => Some(format!("Ended when it was precise enough: {width}.")),
        Ended::OutOfTime => Some(format!("Ended because the time was over: {width}.")),
        Ended::NoArms => Some("Ended because no arm was left.".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::record::{summarise, tests::arm};
    use crate::results::timed::Timed;

    fn result(wall_ns: &[u64]) -> WorkloadResult {
        let mut arms = vec![arm("glibc", Outcome::Finished, wall_ns)];
        summarise(&mut arms, 0, 1);
        WorkloadResult {
            workload: "w".into(),
            about: String::new(),
            timed: Timed::Proofs,
            log_rows: 10,
            threads: 2,
            live_peak_bytes: None,
            baseline: "glibc".into(),
            arms,
            ended: Ended::AllRounds,
        }
    }

    /// On a busy machine the times may contradict the ratio. The reader must learn which one to believe.
    #[test]
    fn a_busy_machine_is_named_and_a_slow_cold_proof_is_none() {
        assert_eq!(busy(&result(&[900, 100, 110, 105])), None);
        assert!(busy(&result(&[100, 100, 300, 100])).unwrap().starts_with("The machine was busy"));
    }

    /// A newcomer's first run is on a busy laptop. It must report that page faults and CPU time fell, even if wall time
    /// shows nothing.
    #[test]
    fn what_scatters_less_than_wall_time_is_said() {
        let with = |mut arm: ArmResult, minflt, cpu_ns| {
            for proof in &mut arm.samples {
                (proof.sample.minflt, proof.sample.user_ns, proof.sample.sys_ns) = (minflt, cpu_ns, 0);
            }
            arm
        };
        // Wall time is above and below the baseline's equally often.
        let (even, scattered) = ([100; 9], [100, 90, 110, 110, 90, 90, 110, 110, 90]);
        let shown = |minflt, cpu_ns| {
            let base = with(arm("glibc", Outcome::Finished, &even), 1000, 100);
            let mut arms = vec![base, with(arm("zk-alloc", Outcome::Finished, &scattered), minflt, cpu_ns)];
            summarise(&mut arms, 0, 1);
            steady(&WorkloadResult { arms, ..result(&[1, 1]) })
        };
        let said = shown(2, 90).unwrap();
        for part in
            ["no difference in wall time", "CPU time 0.900 [0.900, 0.900]", "2 page faults a proof against 1,000"]
        {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(!shown(2, 99).unwrap().contains("CPU time"), "1% is not worth a verdict");
        assert_eq!(shown(900, 100), None);
    }

    /// A reader must see that the allocator fails, and why the run succeeds anyway.
    #[test]
    fn an_arm_that_is_known_to_fail_is_explained() {
        let failed = Outcome::Failed { round: 1, reason: "proof 2 does not verify: no".into() };
        let known = ArmResult { known_to_fail: Some("it resets".into()), ..arm("bump-reset", failed, &[1, 2]) };
        let notes = of_arm(&result(&[1, 2]), &known);
        assert_eq!(notes[0], "bump-reset: FAILED in round 1: proof 2 does not verify: no");
        assert!(notes[1].contains("known to fail") && notes[1].ends_with("it resets"), "{notes:?}");
    }

    #[test]
    fn what_ended_the_rounds_is_said_with_the_width_that_was_reached() {
        let ended = |ended| super::ended(&WorkloadResult { ended, ..result(&[1, 1, 1]) });
        assert_eq!(ended(Ended::AllRounds), None);
        assert!(ended(Ended::Precise).unwrap().contains("precise enough"));
        assert!(ended(Ended::OutOfTime).unwrap().contains("time was over: there is no interval yet"));
    }
}
