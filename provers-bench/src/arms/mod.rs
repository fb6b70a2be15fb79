//! The arms, as data: an allocator, the binary that links it, its settings, and what must hold of it and its proofs.
//!
//! Each file but `arm` and `installed` is one allocator, by the name that [`arm!`](crate::arm) takes: what to install, what it says
//! when it is asked, its arms and their colour. A crate with a prover of its own has them from here, and depends on this
//! one alone.
//!
//! Without the features `jemalloc` and `peers`, those that take long to build are known by name and can't be run: their
//! binaries need them.
//!
//! What calls into an allocator is `#[inline]`: it is compiled in the binary that calls it and never in this library. An
//! allocator that the library itself called would be linked into every arm, with whatever it does before `main`.

mod arm;
pub mod bump_reset;
pub mod glibc;
mod installed;
pub mod jemalloc;
pub mod mimalloc;
pub mod snmalloc;
pub mod tcmalloc;
pub mod zk_alloc;
pub mod zk_alloc_resident;

pub use crate::sample::Counters;
pub use arm::{Arm, Colour, Condition};
pub use installed::Installed;

/// Every allocator's arms, in the order of tables.
const ALLOCATORS: &[&[Arm]] = &[
    glibc::ARMS,
    jemalloc::ARMS,
    mimalloc::ARMS,
    snmalloc::ARMS,
    tcmalloc::ARMS,
    bump_reset::ARMS,
    zk_alloc::ARMS,
    zk_alloc_resident::ARMS,
];

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
