//! The arms, as data: an allocator, the binary that links it, its settings, and the conditions that its proofs must
//! meet.
//!
//! Each file except `arm` and `installed` describes one allocator, under the name that [`arm!`](crate::arm) takes: the
//! value to install, its reports, its arms and their colour. A crate with its own prover takes them from here, and
//! depends on this crate alone.
//!
//! Some allocators take long to build. Without the features `jemalloc` and `peers` they are known by name but cannot
//! run, because their binaries need these features.
//!
//! Functions that call into an allocator are `#[inline]`, so that they are compiled in the calling binary and never in
//! this library. If the library itself called an allocator, every arm would link it, including its code that runs
//! before `main`.

mod arm;
pub mod bump_reset;
pub mod glibc;
mod installed;
pub mod jemalloc;
pub mod mimalloc;
pub mod snmalloc;
pub mod tcmalloc;
pub(crate) mod tuned;
pub mod zk_alloc;
pub mod zk_alloc_resident;

pub use crate::sample::Counters;
pub use arm::{Arm, Colour, Condition};
pub use installed::Installed;

/// The arms of all allocators, in the order of tables.
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

/// All arms of this workspace.
pub const ARMS: &[Arm] = &all();

/// The arm with this name.
pub(crate) fn named(name: &str) -> Option<&'static Arm> {
    ARMS.iter().find(|arm| arm.name == name).or_else(|| tuned::named(name))
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

/// A named set of arms for the command line.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) contains: fn(&Arm) -> bool,
}

/// Our arm with default settings. It represents our arms in the sets `quick` and `peers`, and `check` holds it to its
/// baseline.
pub(crate) const OURS: &str = zk_alloc::PLAIN.name;

/// All sets.
pub(crate) const SETS: &[Set] = &[
    Set { name: "quick", contains: |arm| ["glibc", "jemalloc", OURS].contains(&arm.name) },
    Set { name: "peers", contains: |arm| arm.name == OURS || !arm.is_ours },
    Set { name: "all", contains: |_| true },
];

/// The set that runs without `--allocators`.
pub(crate) const DEFAULT_SET: &str = "quick";

/// The arm that the others are compared with. If it does not take part, the first arm replaces it.
pub const BASELINE: &str = "glibc";

#[cfg(test)]
mod tests {
    use super::*;

    /// If a name stood for two things, one would be measured under the other's name.
    #[test]
    fn names_of_arms_and_sets_are_unique_and_the_baseline_exists() {
        let names = || ARMS.iter().map(|arm| arm.name).chain(SETS.iter().map(|set| set.name));
        for name in names().chain([BASELINE, DEFAULT_SET]) {
            assert_eq!(names().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    /// A tuned arm that does not confirm its settings could show the default's figures.
    #[test]
    fn every_setting_of_a_peer_is_confirmed_by_it() {
        for arm in ARMS.iter().filter(|arm| !arm.environment.is_empty() && !arm.is_ours) {
            assert!(!arm.confirms.is_empty(), "{}", arm.name);
        }
    }
}
