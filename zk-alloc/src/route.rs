//! Where a request goes. Pure arithmetic: whoever answers differently changes speed and memory, never safety.

/// The path of a request through the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// A thread's slab: bump allocated.
    Slab,
    /// A run of pages in one of the zones, which keep small things out of the holes that giants leave.
    Run(Zone),
}

/// The zones of page runs, by the size of what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Zone {
    /// Below [`MID_BYTES`].
    Small,
    /// From [`MID_BYTES`].
    Mid,
    /// From [`GIANT_BYTES`].
    Giant,
}

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
