//! The sentences of the advice, each about a few figures.

use super::worth::{self, Change, LEAST_FAULTS_CHANGE, Offer};
use crate::arms::BASELINE;
use crate::results::format;
use crate::results::record::{ArmResult, Run, WorkloadResult};
use crate::results::stats::{Ratio, Verdict};
use crate::results::summary::Summary;
use crate::results::view::{self, LEAST_TIME_CHANGE};

/// The kernel's share of the baseline's CPU time, which limits how much kernel time an allocator can save.
pub(super) fn ceiling(workload: &WorkloadResult) -> Vec<String> {
    let Some((base, figures)) = view::baseline(workload).filter(|(arm, _)| arm.arm == BASELINE) else {
        return Vec::new();
    };
    let Some(share) = view::kernel_share(base) else { return Vec::new() };
    let faults = figures.warm_minflt.map_or_else(String::new, |faults| {
        format!(", with {} page faults {}", format::count(faults), workload.timed.each())
    });
    let share = 100.0 * share;
    vec![format!(
        "Ceiling: under {} the kernel takes {share:.1}% of the CPU time{faults}. No allocator can save more kernel time than that, and \
         input and output are part of it. What malloc and free cost in user mode comes on top, and so do the effects of caches and huge \
         pages: the runs below measure both.",
        base.label
    )]
}

/// Says which share of the baseline's wall time the runs take.
pub(super) fn wall_time(wall: &Ratio) -> String {
    let doubt = if wall.verdict() == Verdict::NoDifferenceShown { " (no difference shown)" } else { "" };
    format!("{} of the time{doubt}", format::ratio(wall))
}

/// The time and memory of arms, as shares of the baseline's.
pub(super) fn trades(offers: &[&Offer<'_>]) -> String {
    let trade = |offer: &&Offer<'_>| {
        let time = match offer.time.cpu {
            Some(cpu) => format!("{:.3} of the CPU time", cpu.median),
            None => format!("{:.3} of the time", offer.time.wall.median),
        };
        let shows_nothing = offer.time.wall.verdict() == Verdict::NoDifferenceShown;
        let doubt = if shows_nothing { " (wall time shows no difference)" } else { "" };
        format!("{} takes {time}{doubt} and {} of the memory", offer.arm.label, peak_ratio(offer.figures))
    };
    offers.iter().map(trade).collect::<Vec<_>>().join("; ")
}

pub(super) fn peak_ratio(figures: &Summary) -> String {
    figures.peak_rss_ratio.map_or_else(|| "an unknown part".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// How memory, CPU time and page faults change.
pub(super) fn price(
    workload: &WorkloadResult,
    Offer { arm, figures, .. }: &Offer<'_>,
    base_figures: &Summary,
) -> String {
    let both = |figure: fn(&Summary) -> Option<u64>| Some((figure(figures)?, figure(base_figures)?));
    let divided = |(now, then): (u64, u64)| (then > 0).then(|| now as f64 / then as f64);
    let changed = |what: &str, (now, then): (u64, u64), words: fn(u64) -> String, ratio: Option<f64>| {
        let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
        format!("{what} {} instead of {}{ratio}", words(now), words(then))
    };
    let parts = [
        both(|figures| figures.peak_rss_bytes).map(|pair| changed("peak RSS", pair, format::bytes, divided(pair))),
        both(|figures| figures.resting_rss_bytes)
            .filter(|_| workload.timed.rests())
            .map(|pair| changed("resting RSS", pair, format::bytes, divided(pair))),
        both(|figures| figures.warm_cpu_ns).map(|pair| {
            // The ratio of the table, which is computed round by round.
            let ratio = figures.cpu_ratio.map(|ratio| ratio.median);
            changed("CPU time", pair, format::time, ratio.or_else(|| divided(pair)))
        }),
        both(|figures| figures.warm_minflt).map(|pair| changed("page faults", pair, format::count, divided(pair))),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("With {}: {}.", arm.label, parts.join("; "))
}

/// Figures that change although wall time shows no difference: the lowest and the highest ratio of each.
pub(super) fn besides_time(run: &Run, base: &ArmResult, offers: &[Offer<'_>]) -> Option<String> {
    let alike: Vec<_> = offers.iter().filter(|offer| offer.time.wall.verdict() == Verdict::NoDifferenceShown).collect();
    let shown = |ratio: Option<Ratio>, least| ratio.filter(|ratio| Change::of(ratio, least) != Change::None);
    let of_all = |ratio: &dyn Fn(&Offer<'_>) -> Option<f64>| -> Vec<_> {
        alike.iter().filter_map(|offer| Some((offer.arm.label.as_str(), ratio(offer)?))).collect()
    };
    let parts = [
        ("CPU time", of_all(&|offer| Some(shown(offer.figures.cpu_ratio, LEAST_TIME_CHANGE)?.median))),
        (
            "page faults",
            of_all(&|offer| {
                let ratio = worth::ratio(run, offer.arm, base, |sample| sample.minflt);
                Some(shown(ratio, LEAST_FAULTS_CHANGE)?.median)
            }),
        ),
        ("peak RSS", of_all(&|offer| offer.figures.peak_rss_ratio.filter(|_| offer.memory != Change::None))),
    ];
    let parts: Vec<_> = parts.iter().filter_map(|(what, ratios)| Some(format!("{what} {}", range(ratios)?))).collect();
    let list = parts.join(", ");
    (!parts.is_empty())
        .then(|| format!("Where wall time shows no difference, other figures do, as ratios to {}: {list}.", base.label))
}

/// The lowest and the highest of the ratios, each with its label.
fn range(ratios: &[(&str, f64)]) -> Option<String> {
    let lowest = ratios.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let highest = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let words = |(label, ratio): &(&str, f64)| format!("{ratio:.2} ({label})");
    Some(if lowest.0 == highest.0 { words(lowest) } else { format!("{} to {}", words(lowest), words(highest)) })
}
