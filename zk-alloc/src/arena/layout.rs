//! What the zones are made of, and what pays with the kernel: granules, huge pages, how memory is prefaulted, how it is cleared.
//!
//! Why zones: the one huge buffer of a proof leaves a huge hole behind. A small thing that lives across proofs and
//! lands in that hole makes the next huge run go elsewhere, and the process pays for two (docs/design.md).

use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use crate::config::{Config, HugePagesOutcome};
use crate::os::{self, HUGE_PAGE_BYTES};
use crate::route::{self, RunKind};

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
    /// So many bytes at the zone's start are for slabs and short runs only.
    pub(crate) small_only_bytes: usize,
    /// So many bytes at the zone's start are in small pages, also where the rest has huge ones: a process that uses little does
    /// not pay for whole huge pages.
    pub(crate) small_pages_bytes: usize,
    /// From so many bytes on, dirty memory is zeroed by giving its pages back: the kernel then clears them on the threads
    /// that touch them, instead of all of it here on one.
    pub(crate) lazy_zero_bytes: usize,
    /// A run that moves to grow begins at a multiple of so many times its length, so that it can grow on where it stands. 1 is no room.
    pub(crate) growth_room: usize,
    /// Whether threads keep runs that they freed. Of one zone only, so that whoever takes them all knows where they lie.
    pub(crate) is_cached: bool,
}

/// A zone's granule is the unit of its bitmap, and of what is known of its memory: small against the smallest run, so that little
/// is wasted and the account is exact, and large enough that even the longest runs are a few hundred words.
pub(crate) const fn granule_bytes(runs: RunKind) -> usize {
    match runs {
        RunKind::Aligned | RunKind::Mid => 4 << 10,
        RunKind::Huge => 256 << 10,
    }
}

/// A prover whose middle sizes fit in here keeps them in small pages (docs/design.md).
const SMALL_PAGES_BYTES: usize = 8 << 20;

/// Room for the slabs and short runs of each of the machine's threads where no long run goes, in bytes. What of them outlives a
/// proof would otherwise take the places of the next proof's long runs (docs/experiments/placement.md).
pub(crate) const SMALL_RESERVED_BYTES: usize = 3 << 20;

/// What [`ZoneSpec::growth_room`] is for huge runs. A huge run that moves leaves resident memory behind in which no other huge run may fit: at 8,
/// that is an eighth of its last length at most (docs/experiments/untouched.md). It costs addresses only.
const HUGE_RUN_GROWTH_ROOM: usize = 8;

/// What the zones are made from, in the order of [`RunKind`]; in the one that slabs lie in, the first bytes are theirs.
pub(crate) fn zone_specs(config: &Config) -> [ZoneSpec; 3] {
    let huge = HugeAdvice::of(config.huge_pages);
    // In small pages, a fault for each costs more than clearing them here.
    let lazy_zero_bytes = if huge == HugeAdvice::Ask { config.settings.lazy_zero_bytes.value } else { usize::MAX };
    [RunKind::Aligned, RunKind::Mid, RunKind::Huge].map(|runs| {
        let small_only_bytes = if runs == route::SLABS { SMALL_RESERVED_BYTES * config.threads } else { 0 };
        let small_pages_bytes = match runs {
            _ if config.huge_pages == HugePagesOutcome::Always => 0,
            RunKind::Aligned => usize::MAX,
            RunKind::Mid => small_only_bytes + SMALL_PAGES_BYTES,
            RunKind::Huge => 0,
        };
        ZoneSpec {
            granule_bytes: granule_bytes(runs).max(os::page_bytes()),
            huge,
            small_only_bytes,
            small_pages_bytes,
            lazy_zero_bytes,
            growth_room: if runs == RunKind::Huge { HUGE_RUN_GROWTH_ROOM } else { 1 },
            // Aligned runs are rare, and a huge run is never hidden from the others.
            is_cached: runs == RunKind::Mid,
        }
    })
}

impl ZoneSpec {
    /// The alignment of a run: what was asked for, and a huge page's where huge pages are asked for and the run fills one. In small
    /// pages that would only make holes.
    pub(super) fn run_align(&self, size: usize, align: usize) -> usize {
        if self.huge == HugeAdvice::Ask && size >= HUGE_PAGE_BYTES { align.max(HUGE_PAGE_BYTES) } else { align }
    }
}

/// In chunks of how many bytes a zone prefaults the edges of what it hands out, where `at_bytes` into the zone nothing is
/// resident yet: the next phase's runs lie a little elsewhere, and find them there.
///
/// A huge page comes whole. Small pages come in chunks of a sixteenth of what is resident, so that a small process pays little
/// for what it may never use, and a large one makes few calls.
pub(super) fn prefault_bytes(spec: &ZoneSpec, at_bytes: usize, resident_bytes: usize) -> usize {
    if spec.huge == HugeAdvice::Ask && at_bytes >= spec.small_pages_bytes {
        HUGE_PAGE_BYTES
    } else {
        let share = (resident_bytes / 16).clamp(spec.granule_bytes, HUGE_PAGE_BYTES);
        1 << share.ilog2()
    }
}

/// The most in a row that is taken for densely used without a look.
const MAX_TRUST: u16 = 4095;

/// How often to look whether what was handed out was used: again and again as long as it is sparse, and ever more rarely once it
/// was dense. Threads that race here look once too often, or too rarely.
#[derive(Debug)]
struct Trust {
    /// So many are taken for dense before the next look.
    left: AtomicU16,
    /// As many were, after the last one.
    granted: AtomicU16,
}

impl Trust {
    const fn new(first: u16) -> Self {
        Self { left: AtomicU16::new(first), granted: AtomicU16::new(first) }
    }

    /// Takes one more for dense, without a look; `false` where it is time for one.
    fn spend(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// What a look has shown.
    fn learn(&self, is_dense: bool) {
        let next = if is_dense { (8 * self.granted.load(Ordering::Relaxed) + 7).min(MAX_TRUST) } else { 0 };
        self.granted.store(next, Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
    }

    /// As many more are taken for dense as after the last look, which the next one has yet to follow.
    fn renew(&self) {
        self.left.store(self.granted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// How chunks were used so far. Memory is prefaulted ahead because what is handed out is written; but a program may ask for
/// buffers and write their first pages only, and what was prefaulted around them is in memory for nothing. So a chunk now and then
/// is left to the threads that touch it, and looked at once some of it was handed out.
#[derive(Debug)]
pub(super) struct Ahead {
    trust: Trust,
    /// The chunk to look at: its first granule, and how many they are, as the upper and lower half; 0 is none.
    sample: AtomicU64,
}

impl Ahead {
    pub(super) const fn new() -> Self {
        Self { trust: Trust::new(7), sample: AtomicU64::new(0) }
    }

    /// Whether to prefault a chunk ahead, for what takes these granules of it and of its neighbours. `is_dense` says of a chunk
    /// whether it was used; nothing as long as that can't be said.
    pub(super) fn pays(
        &self,
        chunk: Range<usize>,
        taken: &Range<usize>,
        is_dense: impl FnOnce(Range<usize>) -> Option<bool>,
    ) -> bool {
        let sample = self.sample.load(Ordering::Relaxed);
        if sample != 0 {
            let from = (sample >> 32) as usize;
            let sample = from..from + (sample & u64::from(u32::MAX)) as usize;
            let overlaps = |other: &Range<usize>| other.start < sample.end && sample.start < other.end;
            if overlaps(&chunk) {
                return false;
            }
            // What is being taken is not written yet.
            if overlaps(taken) {
                return self.trust.spend();
            }
            if let Some(is_dense) = is_dense(sample) {
                self.trust.learn(is_dense);
                self.sample.store(0, Ordering::Relaxed);
            }
        }
        if self.trust.spend() {
            return true;
        }
        // Also where there is a sample of which nothing can be said: it may stay so.
        self.trust.renew();
        self.sample.store((chunk.start as u64) << 32 | chunk.len() as u64, Ordering::Relaxed);
        false
    }
}

/// Below so many bytes, clearing costs less than asking what is in memory.
const SPARSE_MIN_BYTES: usize = 256 << 10;
/// Runs of so many kinds, by the binary logarithm of their length, have habits of their own.
const KINDS: usize = 48;

/// How zeroed memory of each length was used so far. What is zeroed and then hardly touched (a table with few entries) shall
/// stay out of memory when it is zeroed again; what is written whole is cleared here, at once. Which it is can't be known
/// ahead, so the last ones of that length are looked at.
#[derive(Debug)]
pub(super) struct Zeroing {
    lazy_zero_bytes: usize,
    trust: [Trust; KINDS],
}

impl Zeroing {
    pub(super) fn new(spec: &ZoneSpec) -> Self {
        Self { lazy_zero_bytes: spec.lazy_zero_bytes, trust: [const { Trust::new(0) }; KINDS] }
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
        let trust = &self.trust[(bytes.ilog2() as usize).min(KINDS - 1)];
        if trust.spend() {
            return false;
        }
        let is_sparse = in_memory().is_some_and(|in_memory| in_memory < bytes / 4);
        trust.learn(!is_sparse);
        is_sparse
    }
}
