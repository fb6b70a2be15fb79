//! The arms, as data: an allocator, the binary that links it, its settings, and what must hold of it and its proofs.
//!
//! Each file but `installed` is one allocator, by the name that [`arm!`](crate::arm) takes: what to install, what it says
//! when it is asked, its arms and their colour. A crate with a prover of its own has them from here, and depends on this
//! one alone.
//!
//! What calls into an allocator is `#[inline]`: it is compiled in the binary that calls it and never in this library. An
//! allocator that the library itself called would be linked into every arm, with whatever it does before `main`.

pub mod bump_reset;
pub mod glibc;
mod installed;
pub mod jemalloc;
pub mod mimalloc;
pub mod snmalloc;
pub mod zk_alloc;
pub mod zk_alloc_resident;

pub use crate::sample::Counters;
pub use installed::Installed;

use crate::sample::Sample;

/// Every allocator's arms, in the order of tables.
const ALLOCATORS: &[&[Arm]] = &[
    glibc::ARMS,
    jemalloc::ARMS,
    mimalloc::ARMS,
    snmalloc::ARMS,
    bump_reset::ARMS,
    zk_alloc::ARMS,
    zk_alloc_resident::ARMS,
];

/// An allocator with its settings.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Name on the command line, in tables and in files.
    pub name: &'static str,
    /// The binary that links the allocator; it lies beside the driver.
    pub binary: &'static str,
    /// Our own arena serves it.
    pub is_ours: bool,
    /// Its colour in charts; the arms of one allocator have the same.
    pub colour: Colour,
    /// Environment variables that set it.
    pub environment: &'static [(&'static str, &'static str)],
    /// Settings and values, in the allocator's own words, that it must confirm before it proves.
    pub confirms: &'static [(&'static str, &'static str)],
    /// What each of its proofs must show, or the arm was not what was measured.
    pub holds: &'static [Condition],
    /// Why the arm may fail without failing the run; `None` if it must not fail.
    pub known_to_fail: Option<&'static str>,
}

/// A colour on light paper and on dark, as CSS has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// On light paper.
    pub light: &'static str,
    /// On dark paper.
    pub dark: &'static str,
}

impl Colour {
    /// Of an arm that says nothing else, and of one that is not known here.
    pub const OTHER: Self = Self { light: "#3f9bd1", dark: "#9bd4f5" };
}

impl Arm {
    /// The allocator that `binary` links, as it comes.
    pub const fn new(name: &'static str, binary: &'static str) -> Self {
        let (environment, confirms, holds) = (&[], &[], &[]);
        let (is_ours, colour, known_to_fail) = (false, Colour::OTHER, None);
        Self { name, binary, is_ours, colour, environment, confirms, holds, known_to_fail }
    }
}

/// The arms of this workspace.
pub const ARMS: &[Arm] = &all();

/// The arm of this name.
pub(crate) fn named(name: &str) -> Option<&'static Arm> {
    ARMS.iter().find(|arm| arm.name == name)
}

const fn all() -> [Arm; count()] {
    let mut arms = [ALLOCATORS[0][0]; count()];
    let (mut allocator, mut at) = (0, 0);
    while allocator < ALLOCATORS.len() {
        let mut arm = 0;
        while arm < ALLOCATORS[allocator].len() {
            arms[at] = ALLOCATORS[allocator][arm];
            (arm, at) = (arm + 1, at + 1);
        }
        allocator += 1;
    }
    arms
}

const fn count() -> usize {
    let (mut count, mut allocator) = (0, 0);
    while allocator < ALLOCATORS.len() {
        count += ALLOCATORS[allocator].len();
        allocator += 1;
    }
    count
}

/// A set of arms that has a name of its own on the command line.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) contains: fn(&Arm) -> bool,
}

/// Our arm as it comes: it stands for the others of ours, and `check` holds it to its baseline.
pub(crate) const OURS: &str = zk_alloc::PLAIN.name;

/// All sets.
pub(crate) const SETS: &[Set] = &[
    Set { name: "quick", contains: |arm| ["glibc", "jemalloc", OURS].contains(&arm.name) },
    Set { name: "peers", contains: |arm| arm.name == OURS || !arm.is_ours },
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
        for arm in ARMS.iter().filter(|arm| !arm.environment.is_empty() && !arm.is_ours) {
            assert!(!arm.confirms.is_empty(), "{}", arm.name);
        }
    }
}
