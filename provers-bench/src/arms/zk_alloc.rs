//! Our arena, over the allocator of the C library.

use super::arm::{Arm, Colour, Condition};
use super::installed::Installed;
use crate::machine::memory;
use crate::sample::Counters;

/// The allocator's type.
pub type Allocator = ::zk_alloc::ZkAllocator;

/// The value to install as the global allocator.
pub const ALLOCATOR: Allocator = ::zk_alloc::ZkAllocator;

pub(super) const PLAIN: Arm = Arm {
    is_ours: true,
    colour: Colour { light: "#0072b2", dark: "#3fa9ee" },
    holds: ARENA_SERVES,
    ..Arm::new("zk-alloc", "with-zk-alloc")
};

pub(super) const ARMS: &[Arm] = &[
    PLAIN,
    Arm {
        name: "zk-alloc-thp-always",
        environment: &[("ZK_ALLOC_THP", "always")],
        holds: &[ARENA_SERVES[0], IN_HUGE_PAGES],
        ..PLAIN
    },
    Arm { name: "zk-alloc-thp-never", environment: &[("ZK_ALLOC_THP", "never")], ..PLAIN },
    // It purges all free memory at the end of each phase.
    Arm { name: "zk-alloc-retain-0", environment: &[("ZK_ALLOC_RETAIN_BYTES", "0")], ..PLAIN },
    // It samples its call sites.
    #[cfg(feature = "profile")]
    Arm {
        name: "zk-alloc-profile",
        environment: &[("ZK_ALLOC_PROFILE", "1")],
        holds: &[ARENA_SERVES[0], IS_SAMPLED],
        ..PLAIN
    },
];

#[cfg(feature = "profile")]
const IS_SAMPLED: Condition =
    Condition::Positive { gauge: "is_sampled", otherwise: "its setting did not take: no call sites were sampled" };

const ARENA_SERVES: &[Condition] =
    &[Condition::Grows { counter: "arena_allocations", otherwise: "the arena served nothing" }];

/// zk-alloc asks the kernel for huge pages, and continues if it gets none.
const IN_HUGE_PAGES: Condition = Condition::Positive {
    gauge: "large_folio_bytes",
    otherwise: "its setting did not take: nothing lies in huge pages",
};

/// Describes the installed allocator.
#[inline]
pub fn installed() -> Installed {
    // The arm reports this library's version: the allocator is in the same workspace, under the same version.
    let prefixes = &["GLIBC_TUNABLES", "MALLOC_", "ZK_ALLOC_"];
    Installed {
        counters,
        gauges,
        phase: |play| ::zk_alloc::phase(play),
        release: Some(|| _ = ::zk_alloc::release()),
        setting,
        ..Installed::named("zk-alloc", env!("CARGO_PKG_VERSION"), prefixes)
    }
}

/// A constant of the allocator, in builds that can set it.
#[cfg(feature = "tune")]
fn setting(name: &str) -> Option<String> {
    ::zk_alloc::tuning::in_force(name).map(|value| value.to_string())
}

#[cfg(not(feature = "tune"))]
fn setting(_: &str) -> Option<String> {
    None
}

fn named(values: impl IntoIterator<Item = (&'static str, u64)>) -> Counters {
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn counters() -> Counters {
    let stats = ::zk_alloc::stats();
    named([
        ("arena_allocations", stats.arena_allocations),
        ("arena_bytes", stats.arena_bytes),
        ("fresh_bytes", stats.fresh_bytes),
        ("overflow_allocations", stats.overflow_allocations),
        ("overflow_bytes", stats.overflow_bytes),
        ("phases", stats.phases),
        ("refusals", stats.refusals),
        ("system_calls", stats.system_calls),
        // Goes up and down. A sample records its growth during the proof: the memory that left its phase, the proof
        // included, as in zk_alloc's PhaseReport.
        ("escaped_bytes", stats.live_bytes as u64),
    ])
}

fn gauges() -> Counters {
    let large_folio_bytes = memory::large_folio_bytes().unwrap_or(0);
    named([
        ("large_folio_bytes", large_folio_bytes),
        ("peak_live_bytes", ::zk_alloc::stats().peak_live_bytes as u64),
        #[cfg(feature = "profile")]
        ("is_sampled", u64::from(::zk_alloc::profile::is_on())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// An arm with an unused arena would show glibc's figures under its own name.
    #[test]
    fn an_arena_that_served_nothing_breaks_its_condition() {
        let condition = &PLAIN.holds[0];
        let with = |counters| sample::tests::sample(1, counters);
        let counted = |value| Counters::from([("arena_allocations".to_owned(), value)]);
        assert_eq!(condition.broken_by(&with(counted(1))), None);
        assert!(condition.broken_by(&with(counted(0))).unwrap().contains("served nothing"));
        assert!(condition.broken_by(&with(Counters::new())).unwrap().contains("does not report"));
    }

    /// On a host without huge pages, asking for them has no effect.
    #[test]
    fn an_arm_of_huge_pages_without_any_breaks_its_condition() {
        let mut sample = sample::tests::sample(1, Counters::new());
        sample.gauges = Counters::from([("large_folio_bytes".to_owned(), 0)]);
        assert!(IN_HUGE_PAGES.broken_by(&sample).unwrap().contains("nothing lies in huge pages"));
        sample.gauges = Counters::from([("large_folio_bytes".to_owned(), 2 << 20)]);
        assert_eq!(IN_HUGE_PAGES.broken_by(&sample), None);
    }
}
