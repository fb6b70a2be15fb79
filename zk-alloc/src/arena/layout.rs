//! What the zones are made of, and what pays with the kernel: granules, huge pages, how memory is paged in, how it is cleared.
//!
//! Why zones: the one giant buffer of a proof leaves a giant hole behind. A small thing that lives across proofs and
//! lands in that hole makes the next giant go elsewhere, and the process pays for two (docs/design.md).

use std::sync::atomic::{AtomicU16, Ordering};

use super::thread_cache::Place;
use crate::config::{Config, HugePagesOutcome};
use crate::os::{self, HUGE_PAGE_BYTES};
use crate::route::{self, RunSize};

/// What the kernel is told about huge pages, which follows from what [becomes](HugePagesOutcome) of the wish for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugeAdvice {
    /// `MADV_HUGEPAGE`.
    Ask,
    /// `MADV_NOHUGEPAGE`.
    Forbid,
    /// The host's setting as it is.
    Leave,
}

impl HugeAdvice {
    pub(crate) fn of(outcome: HugePagesOutcome) -> Self {
        match outcome {
            HugePagesOutcome::Auto | HugePagesOutcome::Always => Self::Ask,
            HugePagesOutcome::Avoided | HugePagesOutcome::Never => Self::Forbid,
            HugePagesOutcome::Later | HugePagesOutcome::Unavailable => Self::Leave,
        }
    }
}

/// What a zone is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneSpec {
    /// A power of two, at most a huge page, and at least a page of the running kernel.
    pub(crate) granule_bytes: usize,
    pub(crate) huge: HugeAdvice,
    /// So many bytes at the zone's start are for slabs only.
    pub(crate) slabs_only_bytes: usize,
    /// So many bytes at the zone's start are in small pages, also where the rest has huge ones: a process that uses little does
    /// not pay for whole huge pages.
    pub(crate) small_pages_bytes: usize,
    /// From so many bytes on, dirty memory is zeroed by giving its pages back: the kernel then clears them on the threads
    /// that touch them, instead of all of it here on one.
    pub(crate) lazy_zero_bytes: usize,
    /// Where each thread keeps the run that it freed last, if it does.
    pub(crate) kept: Option<Place>,
}

/// A zone's granule is the unit of its bitmap, and of what is known of its memory: small against the smallest run, so that little
/// is wasted and the account is exact, and large enough that even the largest runs are a few words.
pub(crate) const fn granule_bytes(runs: RunSize) -> usize {
    match runs {
        RunSize::Small => 4 << 10,
        RunSize::Mid => 16 << 10,
        RunSize::Giant => 256 << 10,
    }
}

/// Where threads keep the run that they freed last. A giant is never hidden from the others.
const fn kept(runs: RunSize) -> Option<Place> {
    match runs {
        RunSize::Small => Some(Place::Small),
        RunSize::Mid => Some(Place::Mid),
        RunSize::Giant => None,
    }
}

/// A prover whose middle sizes fit in here keeps them in small pages (docs/design.md).
const SMALL_PAGES_BYTES: usize = 8 << 20;

/// Room for the slabs of each of the machine's threads where no run goes, in bytes. Slabs that outlive a proof would otherwise
/// take the places of the next proof's runs (docs/experiments/placement.md).
pub(crate) const SLABS_APART_BYTES: usize = 2 << 20;

/// What the zones are made from, in the order of [`RunSize`]; in the one that slabs lie in, the first bytes are theirs.
pub(crate) fn zone_specs(config: &Config) -> [ZoneSpec; 3] {
    let huge = HugeAdvice::of(config.huge_pages);
    // In small pages, a fault for each costs more than clearing them here.
    let lazy_zero_bytes = if huge == HugeAdvice::Ask { config.settings.lazy_zero_bytes.value } else { usize::MAX };
    [RunSize::Small, RunSize::Mid, RunSize::Giant].map(|runs| {
        let slabs_only_bytes = if runs == route::SLABS { SLABS_APART_BYTES * config.threads } else { 0 };
        let small_pages_bytes = match runs {
            _ if config.huge_pages == HugePagesOutcome::Always => 0,
            // Here lies what is aligned to more than it asks for: one page in many.
            RunSize::Small => usize::MAX,
            RunSize::Mid => slabs_only_bytes + SMALL_PAGES_BYTES,
            RunSize::Giant => 0,
        };
        ZoneSpec {
            granule_bytes: granule_bytes(runs).max(os::page_bytes()),
            huge,
            slabs_only_bytes,
            small_pages_bytes,
            lazy_zero_bytes,
            kept: kept(runs),
        }
    })
}

/// The alignment of a run: what was asked for, and a huge page's for runs that fill one.
pub(crate) const fn run_align(size: usize, align: usize) -> usize {
    if size >= HUGE_PAGE_BYTES && align < HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { align }
}

/// In pieces of how many bytes a zone pages in the edges of what it hands out, where `at_bytes` into the zone nothing is
/// resident yet: the next phase's runs lie a little elsewhere, and find them there.
///
/// A huge page comes whole. Small pages come in pieces of a sixteenth of what is resident, so that a small process pays little
/// for what it may never use, and a large one makes few calls.
pub(super) fn page_in_bytes(spec: &ZoneSpec, at_bytes: usize, resident_bytes: usize) -> usize {
    if spec.huge == HugeAdvice::Ask && at_bytes >= spec.small_pages_bytes {
        HUGE_PAGE_BYTES
    } else {
        let share = (resident_bytes / 16).clamp(spec.granule_bytes, HUGE_PAGE_BYTES);
        1 << share.ilog2()
    }
}

/// Below so many bytes, clearing costs less than asking what is in memory.
const SPARSE_MIN_BYTES: usize = 256 << 10;
/// Runs of so many kinds, by the binary logarithm of their length, have habits of their own.
const KINDS: usize = 48;
/// The most requests of a kind in a row that are taken for densely used without a look.
const MAX_TRUST: u16 = 4095;

/// How zeroed memory of each length was used so far. What is zeroed and then hardly touched (a table with few entries) shall
/// stay out of memory when it is zeroed again; what is written whole is cleared here, at once. Which it is can't be known
/// ahead, so the last ones of that length are looked at: again and again as long as they are sparse, and ever more rarely
/// once they were dense.
#[derive(Debug)]
pub(super) struct Zeroing {
    lazy_zero_bytes: usize,
    /// Requests that are taken for dense before the next look.
    trusted: [AtomicU16; KINDS],
    /// As many were, the last time.
    trust: [AtomicU16; KINDS],
}

impl Zeroing {
    pub(super) fn new(spec: &ZoneSpec) -> Self {
        Self {
            lazy_zero_bytes: spec.lazy_zero_bytes,
            trusted: [const { AtomicU16::new(0) }; KINDS],
            trust: [const { AtomicU16::new(0) }; KINDS],
        }
    }

    /// Whether to zero dirty memory by giving it back. `in_memory` says how many of its bytes are in memory, if that can be
    /// found out.
    pub(super) fn is_cheaper_in_the_kernel(&self, bytes: usize, in_memory: impl FnOnce() -> Option<usize>) -> bool {
        if bytes >= self.lazy_zero_bytes {
            return true;
        }
        if bytes < SPARSE_MIN_BYTES {
            return false;
        }
        let kind = (bytes.ilog2() as usize).min(KINDS - 1);
        let (trusted, trust) = (&self.trusted[kind], &self.trust[kind]);
        // Threads that race here look once too often, or too rarely.
        let left = trusted.load(Ordering::Relaxed);
        if left > 0 {
            trusted.store(left - 1, Ordering::Relaxed);
            return false;
        }
        let is_sparse = in_memory().is_some_and(|in_memory| in_memory < bytes / 4);
        let next = if is_sparse { 0 } else { (8 * trust.load(Ordering::Relaxed) + 7).min(MAX_TRUST) };
        trust.store(next, Ordering::Relaxed);
        trusted.store(next, Ordering::Relaxed);
        is_sparse
    }
}
