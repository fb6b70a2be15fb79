//! Which part of the arena serves a request. This is pure arithmetic: another answer changes speed and memory use, never safety.

use crate::classes::{self, Class};

/// The path of a request through the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// A block of a size class, from the thread's cache or a slab.
    Block(Class),
    /// A run of pages, in the zone of its kind. So small allocations stay out of the holes that huge runs leave.
    Run(RunKind),
}

/// The kinds of runs. Each kind has a zone of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RunKind {
    /// Runs below [`ALIGNED_BYTES`] that are aligned to more than a block can be. Elsewhere, each would fault in a whole huge
    /// page.
    Aligned,
    /// All other runs below [`HUGE_RUN_BYTES`].
    Mid,
    /// Runs of [`HUGE_RUN_BYTES`] and more.
    Huge,
}

/// Slabs lie in the zone of these runs, so that slabs and runs can reuse each other's memory.
pub(crate) const SLABS: RunKind = RunKind::Mid;
/// No request of this size or more, in bytes, is a [`RunKind::Aligned`], whatever its alignment.
pub(crate) const ALIGNED_BYTES: usize = 256 << 10;
/// The smallest huge run, in bytes.
pub(crate) const HUGE_RUN_BYTES: usize = 64 << 20;
/// The smallest mid run that may lie in the zone of the huge runs, in bytes. It does so if that zone has free resident memory and
/// its own zone has none.
pub(crate) const CROSSES_MIN_BYTES: usize = 4 << 20;
/// The smallest long run, in bytes. Shorter runs outlive their proof more often, and lie with the slabs.
pub(crate) const LONG_RUN_BYTES: usize = 256 << 10;
/// The largest backing allocation that growth moves into the arena, in bytes. Above this size, `realloc` of the usual backing
/// allocators moves page tables instead of contents, which beats our copy.
pub(crate) const MIGRATE_MAX_BYTES: usize = 128 << 10;
/// The size in bytes of the one buffer that the backing allocator serves and frees before the arena takes over. From then on,
/// glibc keeps twice as much at the end of its heap, instead of trimming it at every free. Without the arena, a prover's buffers
/// would raise that limit to 64 MiB.
pub(crate) const TEACHING_BYTES: usize = 4 << 20;
/// The smallest run, in bytes, whose pages growth moves elsewhere instead of copying them, if it has no room where it stands. For
/// smaller runs, a copy costs less than the kernel's bookkeeping.
pub(crate) const MOVE_MIN_BYTES: usize = 4 << 20;

/// The path of a request that the arena serves.
#[inline(always)]
pub(crate) const fn path(size: usize, align: usize) -> Path {
    if size <= classes::MAX_BYTES && align <= classes::MAX_ALIGN {
        Path::Block(Class::of(size, align))
    } else {
        Path::Run(run_kind(size, align))
    }
}

/// The kind of the run that serves a request.
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

/// Whether a run of this many bytes is long.
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
