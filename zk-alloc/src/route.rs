//! Where a request goes. Pure arithmetic: whoever answers differently changes speed and memory, never safety.

use crate::classes::{self, Class};

/// The path of a request through the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// A block of a size class, from the thread's cache or a slab.
    Block(Class),
    /// A run of pages, in the zone of its kind: small things stay out of the holes that huge runs leave.
    Run(RunKind),
}

/// The runs that lie together: each kind has a zone of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RunKind {
    /// Below [`ALIGNED_BYTES`], and aligned to more than a block may be: each would bring a huge page for the little that it is.
    Aligned,
    /// All others below [`HUGE_RUN_BYTES`].
    Mid,
    /// From [`HUGE_RUN_BYTES`].
    Huge,
}

/// Slabs lie in the zone of these runs, so that what either leaves serves the other.
pub(crate) const SLABS: RunKind = RunKind::Mid;
/// Requests of so many bytes and more lie among the others, however they are aligned.
pub(crate) const ALIGNED_BYTES: usize = 256 << 10;
/// The smallest request of the huge runs' zone, in bytes.
pub(crate) const HUGE_RUN_BYTES: usize = 64 << 20;
/// A run of so many bytes may lie in the zone of the huge runs, if that has free resident memory and the zone of the others has not.
pub(crate) const CROSSES_MIN_BYTES: usize = 4 << 20;
/// A run of so many bytes is long. Shorter ones more often outlive their proof, and lie with the slabs.
pub(crate) const LONG_RUN_BYTES: usize = 256 << 10;
/// What a backing allocation may weigh for growth to move it into the arena, in bytes. Above, `realloc` of the usual
/// backing allocators moves page tables instead of contents, which beats our copy.
pub(crate) const MIGRATE_MAX_BYTES: usize = 128 << 10;
/// What the backing allocator is shown once, in bytes: glibc keeps twice as much at the end of its heap from then on, instead of
/// giving it back at every free. Without us it would keep up to 64 MiB, having seen a prover's buffers.
pub(crate) const TEACHING_BYTES: usize = 4 << 20;
/// From so many bytes on, growth that finds no room where a run stands moves its pages elsewhere, and copies nothing. Below, a
/// copy costs less than the kernel's bookkeeping.
pub(crate) const MOVE_MIN_BYTES: usize = 4 << 20;

/// The path of a request that the arena is to serve.
#[inline(always)]
pub(crate) const fn path(size: usize, align: usize) -> Path {
    if size <= classes::MAX_BYTES && align <= classes::MAX_ALIGN {
        Path::Block(Class::of(size, align))
    } else {
        Path::Run(run_kind(size, align))
    }
}

/// Which kind of run serves a request.
pub(crate) const fn run_kind(size: usize, align: usize) -> RunKind {
    if size >= HUGE_RUN_BYTES {
        RunKind::Huge
    } else if size < ALIGNED_BYTES && align > classes::MAX_ALIGN {
        RunKind::Aligned
    } else {
        RunKind::Mid
    }
}

/// The shortest run that may stay in a zone when it shrinks, in bytes.
pub(crate) const fn least_bytes(runs: RunKind) -> usize {
    match runs {
        RunKind::Huge => CROSSES_MIN_BYTES,
        RunKind::Aligned | RunKind::Mid => classes::MAX_BYTES / 2,
    }
}

/// Whether a run of so many bytes is long.
#[inline(always)]
pub(crate) const fn is_long_run(bytes: usize) -> bool {
    bytes >= LONG_RUN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_belong_to_the_path_that_their_constants_name() {
        let is_block = |size, align| matches!(path(size, align), Path::Block(_));
        assert!(is_block(1, 1) && is_block(classes::MAX_BYTES, classes::MAX_ALIGN));
        assert_eq!(path(classes::MAX_BYTES + 1, classes::MAX_ALIGN), Path::Run(RunKind::Mid));
        assert_eq!(path(64, classes::MAX_ALIGN * 2), Path::Run(RunKind::Aligned));
        assert_eq!(path(ALIGNED_BYTES - 1, classes::MAX_ALIGN * 2), Path::Run(RunKind::Aligned));
        assert_eq!(path(ALIGNED_BYTES, classes::MAX_ALIGN * 2), Path::Run(RunKind::Mid));
        assert_eq!(path(HUGE_RUN_BYTES - 1, 1), Path::Run(RunKind::Mid));
        assert_eq!(path(HUGE_RUN_BYTES, 1), Path::Run(RunKind::Huge));
        assert_eq!(path(isize::MAX as usize, 1), Path::Run(RunKind::Huge));
    }
}
