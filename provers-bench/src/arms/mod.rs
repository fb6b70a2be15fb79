//! The arms, as data: an allocator, the binary that links it, its settings, and what must hold of it and its proofs.

pub mod allocators;
mod installed;

pub use crate::sample::Counters;
pub use installed::Installed;

use crate::sample::Sample;

/// An allocator with its settings.
#[derive(Debug)]
pub struct Arm {
    /// Name on the command line, in tables and in files.
    pub name: &'static str,
    /// The binary that links the allocator; it lies beside the driver.
    pub binary: &'static str,
    /// Environment variables that set it.
    pub environment: &'static [(&'static str, &'static str)],
    /// Settings and values, in the allocator's own words, that it must confirm before it proves.
    pub confirms: &'static [(&'static str, &'static str)],
    /// What each of its proofs must show, or the arm was not what was measured.
    pub holds: &'static [Condition],
    /// Why the arm may fail without failing the run; `None` if it must not fail.
    pub known_to_fail: Option<&'static str>,
}

impl Arm {
    /// The allocator that `binary` links, as it comes.
    pub const fn new(name: &'static str, binary: &'static str) -> Self {
        Self { name, binary, environment: &[], confirms: &[], holds: &[], known_to_fail: None }
    }
}

/// The arms of this workspace.
pub const ARMS: &[Arm] = &[
    Arm::new("glibc", "with-glibc"),
    Arm {
        environment: &[("GLIBC_TUNABLES", GLIBC_RETAINS)],
        confirms: &[("retains 256 MiB", "yes")],
        ..Arm::new("glibc-tuned", "with-glibc")
    },
    Arm::new("jemalloc", "with-jemalloc"),
    Arm {
        environment: &[(
            "_RJEM_MALLOC_CONF",
            "thp:always,metadata_thp:auto,retain:true,dirty_decay_ms:-1,muzzy_decay_ms:-1",
        )],
        confirms: &[
            ("opt.thp", "always"),
            ("opt.metadata_thp", "auto"),
            ("opt.retain", "true"),
            ("opt.dirty_decay_ms", "-1"),
            ("opt.muzzy_decay_ms", "-1"),
        ],
        ..Arm::new("jemalloc-tuned", "with-jemalloc")
    },
    Arm::new("mimalloc", "with-mimalloc"),
    Arm {
        environment: &[("MIMALLOC_PURGE_DELAY", "-1"), ("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
        confirms: &[("purge_delay", "-1"), ("allow_large_os_pages", "1")],
        ..Arm::new("mimalloc-tuned", "with-mimalloc")
    },
    Arm::new("snmalloc", "with-snmalloc"),
    Arm {
        known_to_fail: Some("it resets memory that the prover still uses, so that a second proof may not verify"),
        ..Arm::new("bump-reset", "with-bump-reset")
    },
    Arm { holds: ARENA_SERVES, ..Arm::new("zk-alloc", "with-zk-alloc") },
    Arm {
        environment: &[("ZK_ALLOC_THP", "always")],
        holds: &[ARENA_SERVES[0], IN_HUGE_PAGES],
        ..Arm::new("zk-alloc-thp-always", "with-zk-alloc")
    },
    Arm {
        environment: &[("ZK_ALLOC_THP", "never")],
        holds: ARENA_SERVES,
        ..Arm::new("zk-alloc-thp-never", "with-zk-alloc")
    },
    Arm { holds: ARENA_SERVES, ..Arm::new("zk-alloc-resident", "with-zk-alloc-resident") },
];

/// glibc gives nothing back: no request is mapped by itself, the heap is never trimmed, and the heaps of threads stay.
/// Raising `mmap_threshold` would not do everywhere: mallopt(3) ends it at 32 MiB, and glibc 2.36 takes more, but buffers
/// are larger than the one, and older versions refuse the other without a word.
const GLIBC_RETAINS: &str =
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.top_pad=67108864";

const ARENA_SERVES: &[Condition] =
    &[Condition::Grows { counter: "arena_allocations", otherwise: "the arena served nothing" }];

/// zk-alloc asks the kernel for huge pages, and goes on without them.
const IN_HUGE_PAGES: Condition =
    Condition::Positive { gauge: "huge_page_bytes", otherwise: "its setting did not take: nothing lies in huge pages" };

/// A set of arms that has a name of its own on the command line.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) contains: fn(&Arm) -> bool,
}

/// All sets.
pub(crate) const SETS: &[Set] = &[
    Set { name: "quick", contains: |arm| ["glibc", "jemalloc", "zk-alloc"].contains(&arm.name) },
    Set { name: "peers", contains: |arm| arm.name == "zk-alloc" || !arm.name.starts_with("zk-alloc") },
    Set { name: "all", contains: |_| true },
];

/// What runs when `--allocators` is not given.
pub(crate) const DEFAULT_SET: &str = "quick";

/// The arm that the others are compared with, if it takes part; otherwise the first one is.
pub const BASELINE: &str = "glibc";

/// What must hold of every proof of an arm.
#[derive(Clone, Copy, Debug)]
pub enum Condition {
    /// The allocator's counter grew during the proof.
    Grows {
        /// The counter, as the arm's binary names it.
        counter: &'static str,
        /// What it means if the counter did not grow.
        otherwise: &'static str,
    },
    /// The allocator's gauge was not zero after the proof.
    Positive {
        /// The gauge, as the arm's binary names it.
        gauge: &'static str,
        /// What it means if it was zero.
        otherwise: &'static str,
    },
}

impl Condition {
    /// Why `sample` breaks the condition; `None` if it holds.
    pub(crate) fn broken_by(&self, sample: &Sample) -> Option<String> {
        let (name, otherwise, value, zero) = match self {
            Self::Grows { counter, otherwise } => (counter, otherwise, sample.counters.get(*counter), "did not grow"),
            Self::Positive { gauge, otherwise } => (gauge, otherwise, sample.gauges.get(*gauge), "is 0"),
        };
        match value {
            Some(0) => Some(format!("{otherwise} ({name} {zero})")),
            Some(_) => None,
            None => Some(format!("the allocator does not report {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    /// An arm that was not used would show glibc's figures under its own name.
    #[test]
    fn an_arena_that_served_nothing_breaks_its_condition() {
        let condition = &ARMS.iter().find(|arm| arm.name == "zk-alloc").unwrap().holds[0];
        let with = |counters| sample::tests::sample(1, counters);
        let counted = |value| Counters::from([("arena_allocations".to_owned(), value)]);
        assert_eq!(condition.broken_by(&with(counted(1))), None);
        assert!(condition.broken_by(&with(counted(0))).unwrap().contains("served nothing"));
        assert!(condition.broken_by(&with(Counters::new())).unwrap().contains("does not report"));
    }

    /// Where the host has no huge pages, asking for them changes nothing.
    #[test]
    fn an_arm_of_huge_pages_without_any_breaks_its_condition() {
        let mut sample = sample::tests::sample(1, Counters::new());
        sample.gauges = Counters::from([("huge_page_bytes".to_owned(), 0)]);
        assert!(IN_HUGE_PAGES.broken_by(&sample).unwrap().contains("nothing lies in huge pages"));
        sample.gauges = Counters::from([("huge_page_bytes".to_owned(), 2 << 20)]);
        assert_eq!(IN_HUGE_PAGES.broken_by(&sample), None);
    }

    /// A name that stands for two things would measure one under the other's name.
    #[test]
    fn names_of_arms_and_sets_are_unique_and_the_baseline_exists() {
        let names = || ARMS.iter().map(|arm| arm.name).chain(SETS.iter().map(|set| set.name));
        for name in names().chain([BASELINE, DEFAULT_SET]) {
            assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    /// A tuned arm that is not asked whether its setting took would show the default's figures.
    #[test]
    fn every_setting_of_a_peer_is_confirmed_by_it() {
        for arm in ARMS.iter().filter(|arm| !arm.environment.is_empty() && !arm.name.starts_with("zk-alloc")) {
            assert!(!arm.confirms.is_empty(), "{}", arm.name);
        }
    }
}
