//! The results of a run in sentences. Verdicts follow the statistics, whether for or against our allocator.

use crate::results::record::{ArmResult, Outcome, Run, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::summary::Summary;
use crate::results::{format, view};

/// Kernel share of the baseline's CPU time. Below it, avoided page faults cannot show in the time.
const COMPUTE_BOUND_SHARE: f64 = 0.05;
/// A difference in time too small to justify another allocator.
const NULL_RATIO: f64 = 0.02;

/// Sentences about one arm.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) tone: Tone,
    pub(crate) arm: String,
    pub(crate) text: String,
}

/// The meaning of a finding for its arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Better,
    Worse,
    Neutral,
    /// Figures are missing.
    Broken,
}

/// The findings on one workload: our arms first, with a comparison against the peers.
pub(crate) fn findings(run: &Run, workload: &WorkloadResult) -> Vec<Finding> {
    let mut arms: Vec<_> = workload.arms.iter().collect();
    arms.sort_by_key(|arm| !view::is_ours(arm));
    let stands_for_us = view::ours(workload).map(|(arm, _)| arm.label.as_str());
    let mut findings = Vec::new();
    for arm in arms {
        findings.push(of_arm(run, workload, arm));
        if stands_for_us == Some(arm.label.as_str()) {
            findings.extend(against_peers(run, workload, arm));
            // For a command, the ceiling states this already.
            findings.extend(compute_bound(workload, arm).filter(|_| !workload.timed.is_of_command()));
        }
    }
    findings
}

/// The findings that the table of the workload does not show: failures, and our arm against each peer.
pub(crate) fn beyond_the_table(run: &Run, workload: &WorkloadResult) -> Vec<Finding> {
    let mut findings: Vec<_> = workload.arms.iter().map(|arm| of_arm(run, workload, arm)).collect();
    findings.retain(|finding| finding.tone == Tone::Broken);
    if let Some((arm, _)) = view::ours(workload) {
        findings.extend(against_peers(run, workload, arm));
        findings.extend(compute_bound(workload, arm));
    }
    findings
}

fn of_arm(run: &Run, workload: &WorkloadResult, arm: &ArmResult) -> Finding {
    let said = |tone, text| Finding { tone, arm: arm.label.clone(), text };
    let outcome = format::outcome(&arm.outcome);
    let Some(summary) = view::figures(arm) else {
        return said(
            Tone::Broken,
            format!("{}.", outcome.unwrap_or_else(|| format!("no {} was made", workload.timed.noun()))),
        );
    };
    let mut text = warm(&view::name(run, workload), workload, arm, summary);
    if view::is_ours(arm) {
        text += &price(workload, arm, summary).unwrap_or_default();
    }
    if let Some(outcome) = outcome {
        text += &format!(" {outcome}.");
    }
    let tone = match (summary.verdict, &arm.outcome) {
        (_, Outcome::Interrupted) => Tone::Broken,
        (Some(verdict), _) => tone(verdict),
        _ => Tone::Neutral,
    };
    said(tone, text)
}

/// Times, faults and memory of the warm proofs, in a sentence.
fn warm(name: &str, workload: &WorkloadResult, arm: &ArmResult, summary: &Summary) -> String {
    let base = &workload.baseline;
    let reference = view::baseline(workload).filter(|_| !view::is_baseline(workload, arm)).map(|(_, summary)| summary);
    let time = summary.warm_wall_ns.map_or("unknown time".into(), format::time);
    let (warm, each) = (workload.timed.warm(), workload.timed.each());
    let mut text = match (&summary.wall_ratio, summary.verdict) {
        (Some(ratio), Some(verdict)) => {
            let cpu = view::cpu_verdict(summary).map_or_else(String::new, |(verdict, ratio)| {
                format!(", and {} ({})", format::cpu_verdict(verdict), format::ratio(&ratio))
            });
            format!("{warm} of {name} take {}: {}{cpu}", of_time(ratio, base), format::verdict(verdict))
        }
        _ if view::is_baseline(workload, arm) => format!("the baseline; {warm} of {name} take {time}"),
        _ => format!("{warm} of {name} take {time}, with no {base} to compare with"),
    };
    if let Some(faults) = summary.warm_minflt {
        let against = reference.and_then(|summary| summary.warm_minflt).map(format::count);
        let noun = if faults == 1 { "page fault" } else { "page faults" };
        text += &format!(
            "; {} {noun} {each}{}",
            format::count(faults),
            against.map_or_else(String::new, |n| format!(" against {n}"))
        );
    }
    match (view::peak_ratio(workload, arm), summary.peak_rss_bytes) {
        (Some(ratio), _) => text += &format!("; peak RSS {ratio:.2} of {base}'s"),
        (None, Some(peak)) => text += &format!("; peak RSS {}", format::bytes(peak)),
        (None, None) => {}
    }
    text + "."
}

/// The costs of our arm: the first proof, and retained memory.
fn price(workload: &WorkloadResult, arm: &ArmResult, summary: &Summary) -> Option<String> {
    let (base, noun) = (&workload.baseline, workload.timed.noun());
    let (_, reference) = view::baseline(workload).filter(|_| !view::is_baseline(workload, arm))?;
    if !workload.timed.rests() {
        return None;
    }
    let cold = match (&summary.cold_ratio, summary.cold_wall_ns, reference.cold_wall_ns) {
        (Some(ratio), ..) => {
            let verdict = match ratio.verdict() {
                Verdict::TooFewRounds => "too few processes for a verdict",
                verdict => format::verdict(verdict),
            };
            format!(" Cold {noun}s take {}: {verdict}.", of_time(ratio, base))
        }
        (None, Some(ours), Some(theirs)) => {
            let [ours, theirs] = [ours, theirs].map(format::time);
            format!(" The cold {noun} took {ours} against {theirs}, in one process each: no verdict.")
        }
        _ => String::new(),
    };
    let [ours, theirs] = [summary, reference].map(|summary| summary.resting_rss_bytes.map(format::bytes));
    Some(cold + &format!(" Between {noun}s {} stay resident, {} of {base}.", ours?, theirs?))
}

/// Our arm against each peer directly, starting with the peers that beat it.
fn against_peers(run: &Run, workload: &WorkloadResult, arm: &ArmResult) -> Option<Finding> {
    let is_peer =
        |peer: &&ArmResult| !view::is_ours(peer) && !view::is_baseline(workload, peer) && view::figures(peer).is_some();
    let peers = workload.arms.iter().filter(is_peer);
    let ratios: Vec<_> = peers.filter_map(|peer| Some((&peer.label, view::directly(run, arm, peer)?))).collect();
    let group = |verdict: Verdict, words: &str| {
        let listed = ratios.iter().filter(|(_, ratio)| ratio.verdict() == verdict);
        let listed: Vec<_> = listed.map(|(peer, ratio)| format!("{peer} ({})", format::ratio(ratio))).collect();
        (!listed.is_empty()).then(|| format!("{words} {}", listed.join(", ")))
    };
    let groups = [
        group(Verdict::Slower, "slower than"),
        group(Verdict::Faster, "faster than"),
        group(Verdict::NoDifferenceShown, "no difference shown to"),
        group(Verdict::TooFewRounds, "too few rounds for a verdict on"),
    ];
    let tone = match &groups {
        [Some(_), ..] => Tone::Worse,
        [None, Some(_), None, None] => Tone::Better,
        _ => Tone::Neutral,
    };
    let said: Vec<_> = groups.into_iter().flatten().collect();
    (!said.is_empty()).then(|| Finding {
        tone,
        arm: arm.label.clone(),
        text: format!("time as a ratio to each peer's, round by round: {}.", said.join("; ")),
    })
}

/// Explains why the time hardly changed, or why no change is shown, although page faults fell.
fn compute_bound(workload: &WorkloadResult, arm: &ArmResult) -> Option<Finding> {
    let (summary, (reference_arm, reference)) = (view::figures(arm)?, view::baseline(workload)?);
    let (ratio, base) = (summary.wall_ratio?, &workload.baseline);
    let what = match ratio.verdict() {
        Verdict::NoDifferenceShown => "no difference in time is shown",
        Verdict::Faster | Verdict::Slower if (ratio.median - 1.0).abs() <= NULL_RATIO => "the time hardly changes",
        Verdict::TooFewRounds | Verdict::Faster | Verdict::Slower => return None,
    };
    let (faults, reference_faults) = (summary.warm_minflt?, reference.warm_minflt?);
    if 2 * faults > reference_faults {
        return None;
    }
    let share = view::kernel_share(reference_arm)?;
    let why = if share <= COMPUTE_BOUND_SHARE {
        "This prover is bound by arithmetic, which takes as long under every allocator, so little can be gained"
    } else {
        "The saving is lost in the scatter of these rounds, or spent elsewhere"
    };
    let [faults, reference_faults] = [faults, reference_faults].map(format::count);
    let peak = view::peak_ratio(workload, arm)
        .map_or_else(String::new, |ratio| format!(", and peak RSS is {ratio:.2} of {base}'s"));
    let text = format!(
        "why {what}: {base} spends {:.1}% of its CPU time in the kernel, page faults included. \
         {why}. Page faults fall from {reference_faults} to {faults} a proof{peak}.",
        share * 100.0
    );
    Some(Finding { tone: Tone::Neutral, arm: arm.label.clone(), text })
}

fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Faster => Tone::Better,
        Verdict::Slower => Tone::Worse,
        Verdict::NoDifferenceShown | Verdict::TooFewRounds => Tone::Neutral,
    }
}

fn of_time(ratio: &Ratio, baseline: &str) -> String {
    let interval = ratio.interval.map_or_else(String::new, |interval| format!(" {}", format::interval(interval)));
    format!("{:.3} of {baseline}'s time{interval}", ratio.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{EVEN, run, workload, workload_of};
    use crate::results::record::tests::arm;

    const FASTER: [u64; 9] =
        [150_000_000, 90_000_000, 90_000_000, 90_000_000, 90_000_000, 90_000_000, 91_000_000, 92_000_000, 92_000_000];

    /// An arm whose proofs each make `faults` page faults and spend `sys_ns` of CPU time in the kernel.
    fn with(mut arm: ArmResult, faults: u64, sys_ns: u64) -> ArmResult {
        for proof in &mut arm.samples {
            proof.sample.minflt = faults;
            proof.sample.sys_ns = sys_ns;
        }
        arm
    }

    fn finished(label: &str, wall_ns: &[u64]) -> ArmResult {
        arm(label, Outcome::Finished, wall_ns)
    }

    fn said(workload: WorkloadResult) -> Vec<String> {
        let run = run(vec![workload]);
        findings(&run, &run.workloads[0])
            .into_iter()
            .map(|finding| format!("{}: {}", finding.arm, finding.text))
            .collect()
    }

    /// Users quote this sentence: they would believe a wrong direction or a missing interval.
    #[test]
    fn a_faster_arm_is_said_with_its_interval_and_its_price() {
        let said = said(workload_of(vec![
            with(finished("glibc", &EVEN), 83_969, 0),
            with(finished("zk-alloc", &FASTER), 73, 0),
        ]));
        assert_eq!(
            said[0],
            "zk-alloc: warm proofs of poseidon2 2^15 take 0.900 of glibc's time [0.900, 0.920]: faster; 73 page faults a \
             proof against 83,969; peak RSS 1.00 of glibc's. Cold proofs take 1.500 of glibc's time [1.500, 1.500]: too few \
             processes for a verdict. Between proofs 100 MB stay resident, 100 MB of glibc."
        );
        assert!(said[1].starts_with("glibc: the baseline; warm proofs of poseidon2 2^15 take 100 ms"), "{}", said[1]);
        assert_eq!(said.len(), 2, "nothing to explain: {said:?}");
    }

    /// The report must name a peer that is faster than our arm.
    #[test]
    fn a_peer_that_beats_us_is_named_first() {
        let halved = EVEN.map(|ns| ns / 2);
        let slow = EVEN.map(|ns| ns * 2);
        let workload = workload(&[("glibc", &EVEN), ("zk-alloc", &FASTER), ("snmalloc", &slow), ("mimalloc", &halved)]);
        let run = run(vec![workload]);
        let findings = findings(&run, &run.workloads[0]);
        assert_eq!(findings[1].tone, Tone::Worse);
        let text = &findings[1].text;
        assert!(
            text.contains(": slower than mimalloc (1.800 [1.800, 1.840]); faster than snmalloc (0.450 ["),
            "{text}"
        );
    }

    /// A reader must learn why a run gains nothing, and only then.
    #[test]
    fn a_compute_bound_prover_is_explained_once() {
        let explained = |ours: &[u64], sys_ns: u64, faults: u64| {
            let arms =
                vec![with(finished("glibc", &EVEN), 10_000, sys_ns), with(finished("zk-alloc", ours), faults, 0)];
            said(workload_of(arms)).into_iter().find(|text| text.contains("why no difference in time is shown"))
        };
        let bound = explained(&EVEN, 1_000_000, 20).unwrap();
        for part in ["glibc spends 1.0% of its CPU time", "bound by arithmetic", "from 10,000 to 20 a proof"] {
            assert!(bound.contains(part), "{part} in {bound}");
        }
        let scattered = explained(&EVEN, 50_000_000, 20).unwrap();
        assert!(!scattered.contains("bound by arithmetic"), "a third of the time in the kernel: {scattered}");
        assert_eq!(explained(&FASTER, 1_000_000, 20), None);
        assert_eq!(explained(&EVEN, 1_000_000, 9_000), None);
        assert_eq!(explained(&EVEN[..4], 1_000_000, 20), None, "3 rounds show no equality");
    }

    /// An arm without figures must state the reason. It must not be left out or compared.
    #[test]
    fn arms_without_figures_say_why() {
        let failed = Outcome::Failed { round: 2, reason: "proof 2 does not verify".into() };
        let left_out = Outcome::LeftOut { reason: "needs about 9.00 GB".into() };
        let arms = vec![
            arm("glibc", failed, &EVEN[..3]),
            arm("zk-alloc", Outcome::Interrupted, &EVEN[..5]),
            arm("mimalloc", left_out, &[]),
            arm("snmalloc", Outcome::Interrupted, &[]),
        ];
        let said = said(workload_of(arms));
        assert!(
            said[0].starts_with("zk-alloc: warm proofs of poseidon2 2^15 take 100 ms, with no glibc to compare with")
        );
        assert!(said[0].ends_with("interrupted: rounds are missing."), "{}", said[0]);
        assert_eq!(said[1], "glibc: FAILED in round 2: proof 2 does not verify.");
        assert_eq!(said[2], "mimalloc: left out: needs about 9.00 GB.");
        assert_eq!(said[3], "snmalloc: interrupted: rounds are missing.");
    }
}
