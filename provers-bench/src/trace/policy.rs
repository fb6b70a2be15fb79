//! Placement policies, as data.

use zk_alloc::simulation::{self, Blocks};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Threads of the machine on which the traces were recorded. Each of them adds room reserved for slabs and short runs.
const THREADS: u64 = 2;

/// The choice among the holes that have room for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The lowest hole.
    First,
    /// The smallest hole.
    Best,
}

/// The allocator of small and medium sizes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BlockPolicy {
    /// Slabs of blocks of one size class. Blocks are reused one by one.
    Classes(Classes),
    /// Each thread bumps through a slab. A slab is reused once it is empty.
    Bump { slab_bytes: u64 },
    /// Each thread bumps through the free lines of a slab. A thread starts on a slab with at least `free_percent`
    /// percent free lines.
    Lines { slab_bytes: u64, line_bytes: u64, free_percent: u64 },
}

/// Size classes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Classes {
    pub(crate) sizes: Sizes,
    /// Whether threads cache the blocks that they freed last.
    pub(crate) caches: bool,
}

/// The classes, and their slabs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sizes {
    /// The classes of zk-alloc.
    Ours,
    /// `per_doubling` classes per doubling, at least 16 bytes apart. A class uses the smallest of `slabs` that holds
    /// eight blocks, or the last one if none does. If `slabs` is empty, it uses the slab size that zk-alloc would
    /// choose.
    MadeUp { per_doubling: u64, slabs: Vec<u64> },
}

/// The number of classes per doubling in zk-alloc.
pub(crate) const PER_DOUBLING: u64 = simulation::PER_DOUBLING as u64;

impl Sizes {
    /// The class of a request; `None` if a run serves it.
    pub(crate) fn of(&self, size_bytes: u64, align_bytes: u64) -> Option<Blocks> {
        let ours = Blocks::of(size_bytes as usize, align_bytes as usize)?;
        let Self::MadeUp { per_doubling, slabs } = self else { return Some(ours) };
        let class = |size: u64| {
            let size = size.max(16);
            let step = ((1 << (size - 1).ilog2()) / per_doubling).max(16);
            size.next_multiple_of(step)
        };
        let mut block_bytes = class(size_bytes.max(if align_bytes > 16 { align_bytes } else { 1 }));
        while align_bytes > 16 && !block_bytes.is_multiple_of(align_bytes) {
            block_bytes = class(block_bytes + 1);
        }
        let slab_bytes = slabs.iter().copied().find(|slab| *slab >= 8 * block_bytes).or(slabs.last().copied());
        Some(Blocks::made_up(block_bytes as usize, slab_bytes.map(|bytes| bytes as usize)))
    }
}

/// A placement policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    pub(crate) name: String,
    /// Smaller requests go to the backing allocator.
    pub(crate) min_bytes: u64,
    pub(crate) blocks: BlockPolicy,
    /// Whether slabs have their own zone; otherwise they share one with runs.
    pub(crate) slabs_apart: bool,
    /// Bytes at the start of the shared zone that are reserved for slabs and short runs.
    pub(crate) small_only_bytes: u64,
    /// Length of the shortest long run.
    pub(crate) long_run_bytes: u64,
    /// The smallest request of each zone of runs except the first, ascending.
    pub(crate) borders: Vec<u64>,
    pub(crate) fit: Fit,
    /// Length from which runs spill. A run that spills would need fresh memory in its own zone, and takes the far end
    /// of the next zone's resident free memory instead.
    pub(crate) spill_min_bytes: Option<u64>,
}

impl Policy {
    /// The policy of zk-alloc, from its own constants.
    pub(crate) fn ours() -> Self {
        Self {
            name: "zk-alloc".into(),
            min_bytes: simulation::MIN_BYTES as u64,
            blocks: BlockPolicy::Classes(Classes { sizes: Sizes::Ours, caches: true }),
            slabs_apart: false,
            small_only_bytes: THREADS * simulation::small_region_bytes() as u64,
            long_run_bytes: simulation::long_run_bytes() as u64,
            borders: simulation::borders().map(|border| border as u64).into(),
            fit: Fit::First,
            spill_min_bytes: None,
        }
    }

    /// The default policies of a comparison: zk-alloc's, variants of its small and medium sizes, and variants of its zones.
    pub(crate) fn all() -> Vec<Self> {
        let named = |(name, policy): (&str, Self)| Self { name: name.into(), ..policy };
        let all = Self::of_blocks().into_iter().chain(Self::of_zones());
        std::iter::once(Self::ours()).chain(all.map(named)).collect()
    }

    fn of_blocks() -> Vec<(&'static str, Self)> {
        let with = |blocks| Self { blocks, ..Self::ours() };
        let min = |min_bytes| Self { min_bytes, ..Self::ours() };
        let bump = || BlockPolicy::Bump { slab_bytes: 512 * KIB };
        let lines = |line_bytes| BlockPolicy::Lines { slab_bytes: 512 * KIB, line_bytes, free_percent: 25 };
        let classes = |per_doubling, slabs: &[u64], caches| {
            let sizes = Sizes::MadeUp { per_doubling, slabs: slabs.into() };
            with(BlockPolicy::Classes(Classes { sizes, caches }))
        };
        vec![
            ("no-caches", with(BlockPolicy::Classes(Classes { sizes: Sizes::Ours, caches: false }))),
            ("classes-4", classes(4, &[], true)),
            ("classes-4-no-caches", classes(4, &[], false)),
            ("slabs-16k-64k-256k", classes(PER_DOUBLING, &[16 * KIB, 64 * KIB, 256 * KIB], true)),
            ("slabs-64k-256k", classes(PER_DOUBLING, &[64 * KIB, 256 * KIB], true)),
            ("slabs-64k", classes(PER_DOUBLING, &[64 * KIB], true)),
            ("slabs-256k", classes(PER_DOUBLING, &[256 * KIB], true)),
            ("lines-256", with(lines(256))),
            ("lines-1k", with(lines(KIB))),
            ("bump-512k", with(bump())),
            ("min-4k", min(4 * KIB)),
            ("min-2k", min(2 * KIB)),
            ("min-512", min(512)),
            ("min-256", min(256)),
            ("min-128", min(128)),
            ("min-64", min(64)),
            ("lines-1k-min-128", Self { min_bytes: 128, ..with(lines(KIB)) }),
            ("bump-512k-min-128", Self { min_bytes: 128, ..with(bump()) }),
        ]
    }

    fn of_zones() -> Vec<(&'static str, Self)> {
        let ours = Self::ours;
        let small_only = |small_only_bytes| Self { small_only_bytes, ..ours() };
        let slabs_only = |small_only_bytes| Self { long_run_bytes: 0, ..small_only(small_only_bytes) };
        let borders = |borders: &[u64]| Self { borders: borders.into(), ..ours() };
        let together = |all: &[u64]| Self { small_only_bytes: 0, ..borders(all) };
        vec![
            ("one-zone", together(&[])),
            ("best-fit", Self { fit: Fit::Best, ..together(&[64 * MIB]) }),
            ("slabs-apart", Self { slabs_apart: true, ..ours() }),
            ("small-only-0", small_only(0)),
            ("small-only-2m", small_only(2 * MIB)),
            ("small-only-16m", small_only(16 * MIB)),
            ("slabs-only-2m", slabs_only(2 * MIB)),
            ("slabs-only-4m", slabs_only(4 * MIB)),
            ("slabs-only-8m", slabs_only(8 * MIB)),
            ("zones-best-fit", Self { fit: Fit::Best, ..ours() }),
            ("border-16m", borders(&[16 * MIB])),
            ("border-128m", borders(&[128 * MIB])),
            ("borders-256k-64m", borders(&[256 * KIB, 64 * MIB])),
            ("borders-1m-64m", borders(&[MIB, 64 * MIB])),
            ("borders-256k-128m", borders(&[256 * KIB, 128 * MIB])),
            ("borders-4m-64m", borders(&[4 * MIB, 64 * MIB])),
            ("spill", Self { spill_min_bytes: Some(0), ..ours() }),
            ("spill-1m", Self { spill_min_bytes: Some(MIB), ..ours() }),
            ("spill-8m", Self { spill_min_bytes: Some(8 * MIB), ..ours() }),
        ]
    }

    /// The zone of runs for `size_bytes`.
    pub(crate) fn zone(&self, size_bytes: u64) -> usize {
        self.borders.iter().filter(|border| size_bytes >= **border).count()
    }

    /// The page sizes of the zones of runs: zk-alloc's for the smallest run of each zone.
    pub(crate) fn page_bytes(&self) -> Vec<u64> {
        [0].iter().chain(&self.borders).map(|border| simulation::page_bytes(*border as usize) as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variants are compared with the allocator's classes. A formula that differs from theirs would compare something
    /// else.
    #[test]
    fn made_up_classes_with_the_allocator_s_numbers_are_the_allocator_s() {
        let same = Sizes::MadeUp { per_doubling: PER_DOUBLING, slabs: Vec::new() };
        for align in (0..=12).map(|log2| 1 << log2) {
            for size in 1..=33 * KIB {
                assert_eq!(same.of(size, align), Sizes::Ours.of(size, align), "{size} at {align}");
            }
        }
        assert_eq!(same.of(64, 8 * KIB), None);
    }

    #[test]
    fn policies_have_names_of_their_own() {
        let mut names: Vec<_> = Policy::all().into_iter().map(|policy| policy.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
