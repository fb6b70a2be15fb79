//! Placement policies, as data.

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Which of the holes that have room a run goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The lowest.
    First,
    /// The smallest.
    Best,
}

/// Where requests are placed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    pub(crate) name: String,
    /// Smaller requests are the backing allocator's.
    pub(crate) min_bytes: u64,
    pub(crate) slab_bytes: u64,
    /// The largest request that a slab serves.
    pub(crate) slab_max_bytes: u64,
    /// Slabs lie in a zone of their own; else among runs of their size.
    pub(crate) slabs_apart: bool,
    /// Among runs: so many bytes at the start of that zone are for slabs only.
    pub(crate) slabs_only_bytes: u64,
    /// The smallest request of each zone of runs but the first, ascending.
    pub(crate) borders: Vec<u64>,
    pub(crate) fit: Fit,
    /// A run of so many bytes and more that would need fresh memory in its own zone goes to the far end of what is resident
    /// and free in the next.
    pub(crate) spill_min_bytes: Option<u64>,
}

impl Policy {
    /// What zk-alloc does: the constants of `zk-alloc/src/route.rs`, `arena/slab.rs` and `arena/pages.rs`.
    pub(crate) fn ours() -> Self {
        Self {
            name: "zk-alloc".into(),
            min_bytes: KIB,
            slab_bytes: 512 * KIB,
            slab_max_bytes: 32 * KIB,
            slabs_apart: false,
            // On a machine of two threads.
            slabs_only_bytes: 4 * MIB,
            borders: vec![256 * KIB, 64 * MIB],
            fit: Fit::First,
            spill_min_bytes: None,
        }
    }

    /// The policies that are compared when none is named.
    pub(crate) fn all() -> Vec<Self> {
        let ours = Self::ours;
        let named = |name: &str, policy: Self| Self { name: name.into(), ..policy };
        let slabs_only = |slabs_only_bytes| Self { slabs_only_bytes, ..ours() };
        let slabs = |slab_bytes, slab_max_bytes| Self { slab_bytes, slab_max_bytes, ..ours() };
        let borders = |borders: &[u64]| Self { borders: borders.into(), ..ours() };
        let together = |all: &[u64]| Self { slabs_only_bytes: 0, ..borders(all) };
        vec![
            ours(),
            named("one-zone", together(&[])),
            named("one-zone-slabs-2m", Self { slab_bytes: 2 * MIB, slab_max_bytes: 256 * KIB, ..together(&[]) }),
            named("best-fit", Self { fit: Fit::Best, ..together(&[64 * MIB]) }),
            named("slabs-apart", Self { slabs_apart: true, ..ours() }),
            named("slabs-only-0", slabs_only(0)),
            named("slabs-only-2m", slabs_only(2 * MIB)),
            named("slabs-only-8m", slabs_only(8 * MIB)),
            named("zones-best-fit", Self { fit: Fit::Best, ..ours() }),
            named("slabs-256k", slabs(256 * KIB, 32 * KIB)),
            named("slabs-1m-64k", slabs(MIB, 64 * KIB)),
            named("slabs-2m-128k", slabs(2 * MIB, 128 * KIB)),
            named("min-2k", Self { min_bytes: 2 * KIB, ..ours() }),
            named("min-4k", Self { min_bytes: 4 * KIB, ..ours() }),
            named("border-64m", borders(&[64 * MIB])),
            named("borders-1m-64m", borders(&[MIB, 64 * MIB])),
            named("borders-256k-16m", borders(&[256 * KIB, 16 * MIB])),
            named("borders-256k-128m", borders(&[256 * KIB, 128 * MIB])),
            named("borders-256k-4m-64m", borders(&[256 * KIB, 4 * MIB, 64 * MIB])),
            named("spill", Self { spill_min_bytes: Some(0), ..ours() }),
            named("spill-1m", Self { spill_min_bytes: Some(MIB), ..ours() }),
            named("border-64m-spill-8m", Self { spill_min_bytes: Some(8 * MIB), ..borders(&[64 * MIB]) }),
        ]
    }

    /// The zone of runs that `size_bytes` belong to.
    pub(crate) fn zone(&self, size_bytes: u64) -> usize {
        self.borders.iter().filter(|border| size_bytes >= **border).count()
    }

    /// Granules of the zones of runs: a quarter of the smallest run, from 16 KiB to 2 MiB. With our borders, what
    /// `arena/pages.rs` has.
    pub(crate) fn granules(&self) -> Vec<u64> {
        let quarter = |border: &u64| 1 << (border / 4).clamp(16 * KIB, 2 * MIB).ilog2();
        [0].iter().chain(&self.borders).map(quarter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slabs lie where runs of their size do, in the allocator as here: `arena/slab.rs` asserts it.
    #[test]
    fn our_slabs_lie_among_the_middle_runs() {
        let ours = Policy::ours();
        assert!(!ours.slabs_apart);
        assert_eq!(ours.zone(ours.slab_bytes), 1);
    }

    /// The simulator is to say something about zk-alloc: its granules and zones must be the allocator's.
    #[test]
    fn our_zones_are_those_of_the_allocator() {
        let ours = Policy::ours();
        assert_eq!(ours.granules(), [16 * KIB, 64 * KIB, 2 * MIB]);
        let sizes = [33 * KIB, 256 * KIB - 1, 256 * KIB, 64 * MIB - 1, 64 * MIB];
        assert_eq!(sizes.map(|size| ours.zone(size)), [0, 0, 1, 1, 2]);
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
