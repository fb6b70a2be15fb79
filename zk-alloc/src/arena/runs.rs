//! Which granules of a zone are used, and where to look for free ones.
//!
//! First fit has to pass over every hole that is too small. Those below the lowest *lane* (see [`lane_bits`]) of a request's kind
//! are passed over at once: for each kind the zone remembers below where none is clear. Who looks raises that to the first lane
//! that it found; who frees lowers it to what became clear. A raise counts only if nobody lowered it since the search began, so
//! that a lane which is clear is never below for good.

use super::bitmap::{Bitmap, LANES, WORD_BITS, lane_bits};
use crate::route;
use crate::sync::{AtomicU64, Ordering};

/// Bits of a limit that hold an index; those above count how often it was lowered.
const INDEX_BITS: u32 = 32;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Whom a zone serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenant {
    /// A slab. Its blocks may live long, so that the lowest place is its own.
    Slab,
    /// A run of pages that is not long.
    ShortRun,
    /// One that is.
    LongRun,
}

impl Tenant {
    pub(super) const fn of_run(bytes: usize) -> Self {
        if route::is_long_run(bytes) { Self::LongRun } else { Self::ShortRun }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Runs {
    used: Bitmap<'static>,
    /// Those of them that are for slabs and short runs only. They are few, and searched each time.
    apart: Bitmap<'static>,
    /// By kind of lane: none of the others is clear below.
    limits: [AtomicU64; LANES.len()],
}

impl Runs {
    /// All that is clear in `used` is free; the first `apart`, rounded up to whole words, are for slabs and short runs only.
    pub(super) fn new(used: Bitmap<'static>, apart: usize) -> Self {
        Self { used, apart: used.prefix(apart), limits: LANES.map(|_| AtomicU64::new(0)) }
    }

    pub(super) fn used(&self) -> Bitmap<'static> {
        self.used
    }

    /// So many bits at the start are for slabs and short runs only.
    pub(super) fn apart(&self) -> usize {
        self.apart.len()
    }

    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// Claims the lowest free run that may be a tenant's, as [`Bitmap::claim_first_fit`] does.
    pub(super) fn claim_first_fit(&self, tenant: Tenant, n: usize, align: usize, skew: usize) -> Option<usize> {
        let lane = lane_bits(n);
        let (from, lanes_from) = match tenant {
            Tenant::LongRun => (self.apart.len(), lane.map_or(0, |lane| self.raise(lane))),
            // Longer lanes may begin in one part and end in the other.
            Tenant::Slab | Tenant::ShortRun => (0, lane.map_or(0, |lane| self.slabs_from(lane.min(WORD_BITS)))),
        };
        self.used.claim_first_fit(from, lanes_from, n, align, skew)
    }

    /// Claims exactly `[start, start + n)`, or nothing.
    pub(super) fn try_claim(&self, start: usize, n: usize) -> bool {
        self.used.try_claim(start, n).is_ok()
    }

    /// Gives back `[start, start + n)`, which the caller owns.
    pub(super) fn release(&self, start: usize, n: usize) {
        if n == 0 {
            return;
        }
        self.used.release(start, n);
        if start + n <= self.apart.len() {
            return;
        }
        for (lane, limit) in LANES.into_iter().zip(&self.limits) {
            let Some(clear) = self.used.clear_lane_at(start, n, lane) else { break };
            let lowered =
                |limit: u64| (limit & !INDEX_MASK).wrapping_add(1 << INDEX_BITS) | index(limit).min(clear) as u64;
            // Release pairs with the Acquire of `raise`: who sees this sees the bits clear. And with the Acquire here: of threads
            // that each free a word of a longer lane, the last one to come by sees all of it clear. Never fails, as nothing is refused.
            let _ = limit.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |limit| Some(lowered(limit)));
        }
    }

    /// No lane is clear below, of those of at most a word.
    fn slabs_from(&self, lane: usize) -> usize {
        if self.apart.next_clear_lane(0, lane).is_some() { 0 } else { self.raise(lane) }
    }

    /// The lowest lane that is clear, of those that any run may take, or the end.
    fn raise(&self, lane: usize) -> usize {
        let Some(limit) = LANES.iter().position(|&known| known == lane).map(|kind| &self.limits[kind]) else {
            return 0;
        };
        let before = limit.load(Ordering::Acquire);
        let found = self.used.next_clear_lane(index(before).max(self.apart.len()), lane).unwrap_or(self.len());
        if found > index(before) && found as u64 <= INDEX_MASK {
            let raised = before & !INDEX_MASK | found as u64;
            // Lowered meanwhile: the next search raises it.
            let _ = limit.compare_exchange(before, raised, Ordering::Relaxed, Ordering::Relaxed);
        }
        found
    }
}

fn index(limit: u64) -> usize {
    (limit & INDEX_MASK) as usize
}
