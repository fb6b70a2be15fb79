//! What a simulator of this allocator reads of it, so that both are the same allocator: the sizes, and where requests go.
//!
//! `prove-bench simulate` is that simulator (docs/experiments/placement.md). None of this is part of the API: it changes with the allocator.

use crate::arena;
use crate::classes::{self, Class};
use crate::config;
use crate::route::{self, Path};

/// Smaller requests are the backing allocator's, unless `ZK_ALLOC_MIN_BYTES` says otherwise.
pub const MIN_BYTES: usize = config::DEFAULT_MIN_BYTES;
/// Size classes to a doubling.
pub const PER_DOUBLING: usize = classes::PER_DOUBLING;
/// The smallest run of each zone but the first, in bytes. The zone of the few small runs that are aligned to more than they ask
/// for is left out.
pub const BORDERS: [usize; 1] = [route::HUGE_RUN_BYTES];
/// Slabs lie in the zone of the runs of so many bytes.
pub const SLABS_AMONG_BYTES: usize = classes::MOST_SLAB_BYTES;
/// Room at the start of that zone in which only slabs and short runs lie, in bytes, for each of the machine's threads.
pub const SMALL_ROOM_BYTES: usize = arena::SMALL_RESERVED_BYTES;
/// Runs of so many bytes are long.
pub const LONG_RUN_BYTES: usize = route::LONG_RUN_BYTES;
/// A larger block of the backing allocator stays there when it grows.
pub const MIGRATE_MAX_BYTES: usize = route::MIGRATE_MAX_BYTES;
/// From so many bytes on, growth that finds no room moves pages instead of copying.
pub const MOVE_MIN_BYTES: usize = route::MOVE_MIN_BYTES;

const _: () = assert!(matches!(route::run_kind(SLABS_AMONG_BYTES, 1), route::SLABS));

/// What the allocator has for the requests of one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of a slab.
    pub slab_bytes: usize,
    /// Blocks of a slab.
    pub of_slab: usize,
    /// The most blocks that a thread keeps.
    pub kept: usize,
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

    /// What the allocator would do with a class that it does not have; with slabs of its own choice, unless told otherwise.
    #[must_use]
    pub fn made_up(block_bytes: usize, slab_bytes: Option<usize>) -> Self {
        let slab_bytes = slab_bytes.unwrap_or(classes::slab_bytes(block_bytes));
        let kept = classes::capacity_of(block_bytes);
        let of_slab = classes::blocks_of(slab_bytes, block_bytes);
        Self { block_bytes, slab_bytes, of_slab, kept, fetched: arena::fetch_most(block_bytes, kept) }
    }

    fn of_class(class: Class) -> Self {
        let (block_bytes, kept) = (class.block_bytes(), class.capacity());
        let fetched = arena::fetch_most(block_bytes, kept);
        Self { block_bytes, slab_bytes: class.slab_bytes(), of_slab: class.blocks(), kept, fetched }
    }
}

/// The granule of the zone that runs of `size` bytes lie in, in bytes, where pages are not larger.
#[must_use]
pub const fn granule_bytes(size: usize) -> usize {
    arena::granule_bytes(route::run_kind(size, 1))
}
