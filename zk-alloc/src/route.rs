//! Which part of the arena serves a request. This is pure arithmetic: another answer changes speed and memory use, never safety.

use crate::classes::{self, Class};
use crate::tuning;

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
    /// Runs below [`tuning::aligned_bytes`] that are aligned to more than a block can be. Elsewhere, each would fault in a whole huge
    /// page.
    Aligned,
    /// All other runs below [`tuning::huge_run_bytes`].
    Mid,
    /// Runs of [`tuning::huge_run_bytes`] and more.
    Huge,
}

/// Slabs lie in the zone of these runs, so that slabs and runs can reuse each other's memory.
pub(crate) const SLABS: RunKind = RunKind::Mid;
/// The path of a request that the arena serves.
#[inline(always)]
pub(crate) fn path(size: usize, align: usize) -> Path {
    if size <= classes::MAX_BYTES && align <= classes::MAX_ALIGN {
        Path::Block(Class::of(size, align))
    } else {
        Path::Run(run_kind(size, align))
    }
}

/// The kind of the run that serves a request.
pub(crate) fn run_kind(size: usize, align: usize) -> RunKind {
    if size >= tuning::huge_run_bytes() {
        RunKind::Huge
    } else if size < tuning::aligned_bytes() && align > classes::MAX_ALIGN {
        RunKind::Aligned
    } else {
        RunKind::Mid
    }
}

/// The shortest run that may stay in a zone when it shrinks, in bytes.
pub(crate) fn min_bytes(runs: RunKind) -> usize {
    match runs {
        RunKind::Huge => tuning::crosses_min_bytes(),
        RunKind::Aligned | RunKind::Mid => classes::MAX_BYTES / 2,
    }
}

/// Whether a run of this many bytes is long.
#[inline(always)]
pub(crate) fn is_long_run(bytes: usize) -> bool {
    bytes >= tuning::long_run_bytes()
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
        assert_eq!(path(tuning::aligned_bytes() - 1, classes::MAX_ALIGN * 2), Path::Run(RunKind::Aligned));
        assert_eq!(path(tuning::aligned_bytes(), classes::MAX_ALIGN * 2), Path::Run(RunKind::Mid));
        assert_eq!(path(tuning::huge_run_bytes() - 1, 1), Path::Run(RunKind::Mid));
        assert_eq!(path(tuning::huge_run_bytes(), 1), Path::Run(RunKind::Huge));
        assert_eq!(path(isize::MAX as usize, 1), Path::Run(RunKind::Huge));
    }
}
