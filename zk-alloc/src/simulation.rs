//! The facts that a simulator of this allocator takes from it: the sizes, and the path of each request. So the simulator cannot
//! deviate in them.
//!
//! `prove-bench simulate` is that simulator (docs/experiments/placement.md). None of this is part of the API: it changes with the
//! allocator.

use crate::arena;
use crate::classes::{self, Class};
use crate::config;
use crate::route::{self, Path};
use crate::tuning;

#[cfg(feature = "tune")]
pub use crate::tuning::in_force;
pub use crate::tuning::{CONSTANTS, Constant};

/// Smaller requests go to the backing allocator, unless `ZK_ALLOC_MIN_BYTES` says otherwise.
pub const MIN_BYTES: usize = config::DEFAULT_MIN_BYTES;
/// Size classes per doubling.
pub const PER_DOUBLING: usize = classes::PER_DOUBLING;
/// The smallest run of each zone but the first, in bytes. The zone of aligned runs is left out, because they are few and small.
#[must_use]
pub fn borders() -> [usize; 1] {
    [tuning::huge_run_bytes()]
}
/// Slabs lie in the zone of the runs of this many bytes.
pub const SLABS_AMONG_BYTES: usize = classes::MAX_SLAB_BYTES;
/// Bytes at the start of that zone that slabs and short runs have to themselves in the first phase, for each of the machine's threads.
#[must_use]
pub fn small_region_bytes() -> usize {
    tuning::small_region_bytes()
}
/// The smallest long run, in bytes.
#[must_use]
pub fn long_run_bytes() -> usize {
    tuning::long_run_bytes()
}
/// The largest block of the backing allocator that growth moves into the arena, in bytes.
#[must_use]
pub fn migrate_max_bytes() -> usize {
    tuning::migrate_max_bytes()
}
/// The smallest run whose pages growth moves instead of copying them, in bytes.
#[must_use]
pub fn move_min_bytes() -> usize {
    tuning::move_min_bytes()
}

/// The parameters of one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a slab.
    pub slab_bytes: usize,
    /// Blocks in a slab.
    pub of_slab: usize,
    /// The most blocks that a thread cache holds.
    pub cached: usize,
    /// The most blocks that a thread fetches at once.
    pub fetched: usize,
}

impl Blocks {
    /// The class that serves a request; `None` where a run of pages does.
    #[must_use]
    pub fn of(size: usize, align: usize) -> Option<Self> {
        match route::path(size, align) {
            Path::Block(class) => Some(Self::of_class(class)),
            Path::Run(_) => None,
        }
    }

    /// The parameters of a class that the allocator does not have. Its slabs are as the allocator would choose them, unless
    /// `slab_bytes` is given.
    #[must_use]
    pub fn made_up(block_bytes: usize, slab_bytes: Option<usize>) -> Self {
        let slab_bytes = slab_bytes.unwrap_or(classes::slab_bytes(block_bytes));
        let cached = classes::capacity_of(block_bytes);
        let of_slab = classes::blocks_of(slab_bytes, block_bytes);
        Self { block_bytes, slab_bytes, of_slab, cached, fetched: arena::max_fetch(block_bytes, cached) }
    }

    fn of_class(class: Class) -> Self {
        let (block_bytes, cached) = (class.block_bytes(), class.capacity());
        let fetched = arena::max_fetch(block_bytes, cached);
        Self { block_bytes, slab_bytes: class.slab_bytes(), of_slab: class.blocks(), cached, fetched }
    }
}

/// The page size of the zone for runs of `size` bytes, if the kernel's pages are not larger.
#[must_use]
pub fn page_bytes(size: usize) -> usize {
    arena::page_bytes(route::run_kind(size, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulator would put the slabs into another zone than the allocator.
    #[test]
    fn slabs_lie_among_the_runs_of_their_size() {
        assert_eq!(route::run_kind(SLABS_AMONG_BYTES, 1), route::SLABS);
    }
}
