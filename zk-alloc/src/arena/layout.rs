//! What the zones are made of, and what pays with the kernel: granules, huge pages, how memory is paged in, how it is cleared.
//!
//! Why zones: the one giant buffer of a proof leaves a giant hole behind. A small thing that lives across proofs and
//! lands in that hole makes the next giant go elsewhere, and the process pays for two (docs/design.md).

use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

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
    /// Whether threads keep runs that they freed. Of one zone only, so that whoever takes them all knows where they lie.
    pub(crate) is_kept: bool,
}

/// A zone's granule is the unit of its bitmap, and of what is known of its memory: small against the smallest run, so that little
/// is wasted and the account is exact, and large enough that even the longest runs are a few hundred words.
pub(crate) const fn granule_bytes(runs: RunKind) -> usize {
    match runs {
        RunKind::Aligned | RunKind::Mid => 4 << 10,
        RunKind::Giant => 256 << 10,
    }
}

/// A prover whose middle sizes fit in here keeps them in small pages (docs/design.md).
const SMALL_PAGES_BYTES: usize = 8 << 20;

/// Room for the slabs and short runs of each of the machine's threads where no long run goes, in bytes. What of them outlives a
/// proof would otherwise take the places of the next proof's long runs (docs/experiments/placement.md).
pub(crate) const SMALL_APART_BYTES: usize = 3 << 20;

/// What the zones are made from, in the order of [`RunKind`]; in the one that slabs lie in, the first bytes are theirs.
pub(crate) fn zone_specs(config: &Config) -> [ZoneSpec; 3] {
    let huge = HugeAdvice::of(config.huge_pages);
    // In small pages, a fault for each costs more than clearing them here.
    let lazy_zero_bytes = if huge == HugeAdvice::Ask { config.settings.lazy_zero_bytes.value } else { usize::MAX };
    [RunKind::Aligned, RunKind::Mid, RunKind::Giant].map(|runs| {
        let small_only_bytes = if runs == route::SLABS { SMALL_APART_BYTES * config.threads } else { 0 };
        let small_pages_bytes = match runs {
            _ if config.huge_pages == HugePagesOutcome::Always => 0,
            RunKind::Aligned => usize::MAX,
            RunKind::Mid => small_only_bytes + SMALL_PAGES_BYTES,
            RunKind::Giant => 0,
        };
        ZoneSpec {
            granule_bytes: granule_bytes(runs).max(os::page_bytes()),
            huge,
            small_only_bytes,
            small_pages_bytes,
            lazy_zero_bytes,
            // Aligned runs are rare, and a giant is never hidden from the others.
            is_kept: runs == RunKind::Mid,
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

/// The most in a row that are taken for densely used without a look: zeroed buffers, and pieces.
const MAX_ZEROED: u16 = 4095;
const MAX_AHEAD: u16 = 63;

/// How often to look whether what was handed out was used: again and again as long as it is sparse, and ever more rarely once it
/// was dense. Threads that race here look once too often, or too rarely.
#[derive(Debug)]
struct Trust {
    /// So many are taken for dense before the next look.
    left: AtomicU16,
    /// As many were, after the last one.
    granted: AtomicU16,
    most: u16,
}

impl Trust {
    const fn new(first: u16, most: u16) -> Self {
        Self { left: AtomicU16::new(first), granted: AtomicU16::new(first), most }
    }

    /// Takes one more for dense, without a look; `false` where it is time for one.
    fn spend(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// What a look has shown.
    fn learn(&self, is_dense: bool) {
        let next = if is_dense { (8 * self.granted.load(Ordering::Relaxed) + 7).min(self.most) } else { 0 };
        self.granted.store(next, Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
    }

    /// As many more are taken for dense as after the last look, which the next one has yet to follow.
    fn renew(&self) {
        self.left.store(self.granted.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A look was due, and there was nothing to look at.
    fn doubt(&self) {
        self.granted.store(self.granted.load(Ordering::Relaxed) / 8, Ordering::Relaxed);
    }
}

/// So many samples of how pieces are used, the latest.
const SAMPLES: usize = 8;

/// How pieces were used so far. Memory is paged in ahead because what is handed out is written; but a program may ask for
/// buffers and write their first pages only, and what was paged in around them is in memory for nothing. So a piece now and then
/// is left to the threads that touch it. What was handed out there, which held zeroes, is a sample: when it is freed, its first
/// owner has written to it or has not. As long as nobody frees a sample, ever fewer pieces are paged in ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    trust: Trust,
    /// The samples: the first granule of each, and how many they are, as the upper and lower half; 0 is none.
    samples: [AtomicU64; SAMPLES],
    /// Where the next one goes.
    next: AtomicUsize,
}

impl Ahead {
    pub(super) const fn new() -> Self {
        Self {
            trust: Trust::new(7, MAX_AHEAD),
            samples: [const { AtomicU64::new(0) }; SAMPLES],
            next: AtomicUsize::new(0),
        }
    }

    /// Whether to page in a piece ahead. `fresh` is what its taker takes of it, if that holds zeroes.
    pub(super) fn pays(&self, piece: &Range<usize>, fresh: impl FnOnce() -> Option<Range<usize>>) -> bool {
        let is_sampled = |sample: &AtomicU64| !shared(sample, piece).is_empty();
        if self.samples.iter().any(is_sampled) {
            return false;
        }
        if self.trust.spend() {
            return true;
        }
        if let Some(fresh) = fresh() {
            if self.samples.iter().any(|sample| sample.load(Ordering::Relaxed) != 0) {
                self.trust.doubt();
            }
            self.trust.renew();
            let next = self.next.fetch_add(1, Ordering::Relaxed) % SAMPLES;
            self.samples[next].store((fresh.start as u64) << 32 | fresh.len() as u64, Ordering::Relaxed);
        }
        false
    }

    /// Some granules are being freed. `is_dense` says of some of them whether they were written, if that can be said.
    #[inline]
    pub(super) fn freed(&self, granules: &Range<usize>, is_dense: impl Fn(Range<usize>) -> Option<bool>) {
        for sample in &self.samples {
            let seen = shared(sample, granules);
            if !seen.is_empty() && sample.swap(0, Ordering::Relaxed) != 0 {
                is_dense(seen).into_iter().for_each(|is_dense| self.trust.learn(is_dense));
            }
        }
    }
}

/// What a sample has in common with a range.
fn shared(sample: &AtomicU64, range: &Range<usize>) -> Range<usize> {
    let sample = sample.load(Ordering::Relaxed);
    let (start, len) = ((sample >> 32) as usize, (sample & u64::from(u32::MAX)) as usize);
    start.max(range.start)..(start + len).min(range.end)
}

/// Below so many bytes, clearing costs less than a look at what was written.
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
        Self { lazy_zero_bytes: spec.lazy_zero_bytes, trust: [const { Trust::new(0, MAX_ZEROED) }; KINDS] }
    }

    /// Whether to zero dirty memory by giving it back. `is_sparse` says whether little of it was written.
    pub(super) fn is_cheaper_in_the_kernel(&self, bytes: usize, is_sparse: impl FnOnce() -> bool) -> bool {
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
        let is_sparse = is_sparse();
        trust.learn(!is_sparse);
        is_sparse
    }
}
