//! Where a request goes. Pure arithmetic: whoever answers differently changes speed and memory, never safety.

/// The path of a request through the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// A thread's slab: bump allocated.
    Slab,
    /// A run of pages in one of the zones, which keep small things out of the holes that giants leave.
    Run(Zone),
}

/// The zones, by the size of the runs that they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Zone {
    /// Below [`MID_BYTES`].
    Small,
    /// From [`MID_BYTES`].
    Mid,
    /// From [`GIANT_BYTES`].
    Giant,
}

/// The zone that slabs lie in. They are as long as its runs, so that what one kind leaves serves the other.
pub(crate) const SLABS: Zone = Zone::Mid;
/// The largest request that a slab serves, in bytes.
pub(crate) const SLAB_MAX_BYTES: usize = 32 << 10;
/// The largest alignment that a slab serves, in bytes.
pub(crate) const SLAB_MAX_ALIGN: usize = 32 << 10;
/// The smallest request of the middle zone, in bytes.
pub(crate) const MID_BYTES: usize = 256 << 10;
/// The smallest request of the giants' zone, in bytes.
pub(crate) const GIANT_BYTES: usize = 64 << 20;
/// What a backing allocation may weigh for growth to move it into the arena, in bytes. Above, `realloc` of the usual
/// backing allocators moves page tables instead of contents, which beats our copy.
pub(crate) const MIGRATE_MAX_BYTES: usize = 128 << 10;

/// Whether what lies in `zone`, and has a length of `size` bytes by now, is of a slab. No run is so short where slabs lie.
#[inline(always)]
pub(crate) const fn is_in_slab(zone: Zone, size: usize) -> bool {
    matches!(zone, SLABS) && size <= SLAB_MAX_BYTES
}

/// The path of a request that the arena is to serve.
pub(crate) const fn path(size: usize, align: usize) -> Path {
    if size <= SLAB_MAX_BYTES && align <= SLAB_MAX_ALIGN {
        Path::Slab
    } else if size < MID_BYTES {
        Path::Run(Zone::Small)
    } else if size < GIANT_BYTES {
        Path::Run(Zone::Mid)
    } else {
        Path::Run(Zone::Giant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Freeing asks where an address lies, and how long the allocation is: that must say on which path it came.
    #[test]
    fn what_is_of_a_slab_can_be_told_from_runs_beside_it() {
        for size in [1, SLAB_MAX_BYTES, SLAB_MAX_BYTES + 1, MID_BYTES - 1, MID_BYTES, GIANT_BYTES] {
            for align in [1, SLAB_MAX_ALIGN, 2 * SLAB_MAX_ALIGN, GIANT_BYTES] {
                let is_run_in = |zone| path(size, align) == Path::Run(zone);
                assert!(!(is_run_in(SLABS) && is_in_slab(SLABS, size)), "{size} bytes at {align}");
                assert!(path(size, align) != Path::Slab || is_in_slab(SLABS, size), "{size} bytes at {align}");
            }
        }
        assert!(!is_in_slab(Zone::Small, 1) && !is_in_slab(Zone::Giant, 1));
    }

    #[test]
    fn borders_belong_to_the_path_that_their_constants_name() {
        assert_eq!(path(1, 1), Path::Slab);
        assert_eq!(path(SLAB_MAX_BYTES, SLAB_MAX_ALIGN), Path::Slab);
        assert_eq!(path(SLAB_MAX_BYTES + 1, 1), Path::Run(Zone::Small));
        assert_eq!(path(64, SLAB_MAX_ALIGN * 2), Path::Run(Zone::Small));
        assert_eq!(path(MID_BYTES - 1, 1), Path::Run(Zone::Small));
        assert_eq!(path(MID_BYTES, 1), Path::Run(Zone::Mid));
        assert_eq!(path(GIANT_BYTES, 1), Path::Run(Zone::Giant));
        assert_eq!(path(isize::MAX as usize, 1), Path::Run(Zone::Giant));
    }
}
