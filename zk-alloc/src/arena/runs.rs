//! Which granules of a zone are used, and where to look for free ones.
//!
//! First fit has to pass over every hole that is too small. Those below the lowest *lane* (see [`lane_bits`]) of a request's kind
//! are passed over at once: for each kind the zone remembers below where none is clear. Who looks raises that to the first lane
//! that it found; who frees, or gives up a claim, lowers it to what became clear. A raise counts only if nobody lowered it since
//! the search began, so that a lane which is clear is never below for good. Holes that hold a lane and are too short all the same
//! are looked at one by one, and where there are hundreds of them, the request takes the lowest lane that is longer than it.

use super::bitmap::{Bitmap, LANES, Search, WORD_BITS, lane_bits};
use crate::route;
use crate::sync::{AtomicU64, Ordering};

/// Bits of a limit that hold an index; those above count how often it was lowered.
const INDEX_BITS: u32 = 32;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// So many holes that are too short are looked at for the lowest that is not, which takes some microseconds.
const MOST_MISSES: usize = 256;

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

    /// Claims a free run that may be a tenant's: the lowest, as [`Bitmap::find_clear_run`] finds it.
    pub(super) fn claim_first_fit(&self, tenant: Tenant, n: usize, align: usize, skew: usize) -> Option<usize> {
        // Slabs are whole lanes.
        let is_lane = skew == 0 && align >= n && LANES.contains(&n);
        let lane = if is_lane { Some(n) } else { lane_bits(n) };
        let (from, lanes_from) = match tenant {
            Tenant::LongRun => (self.apart.len(), lane.map_or(0, |lane| self.raise(lane))),
            // Longer lanes may begin in one part and end in the other.
            Tenant::Slab | Tenant::ShortRun => (0, lane.map_or(0, |lane| self.slabs_from(lane.min(WORD_BITS)))),
        };
        let mut from = if is_lane { from.max(lanes_from) } else { from };
        let mut most_misses = MOST_MISSES;
        loop {
            match self.used.find_clear_run(from, lanes_from, n, align, skew, most_misses) {
                Search::Found(start) => match self.claim(start, n) {
                    Ok(()) => return Some(start),
                    Err(taken) => from = taken + 1,
                },
                Search::Misses(at) => {
                    if let Some(start) = self.claim_in_lane(n, align, skew) {
                        return Some(start);
                    }
                    (from, most_misses) = (at, usize::MAX);
                }
                Search::Nothing => return None,
            }
        }
    }

    /// Claims a run of which it is sure that it fits where a lane is clear: at the lowest such.
    fn claim_in_lane(&self, n: usize, align: usize, skew: usize) -> Option<usize> {
        let lane = LANES.into_iter().find(|&lane| n <= lane).filter(|lane| skew == 0 && lane % align == 0)?;
        Some(self.raise(lane)).filter(|&start| self.try_claim(start, n))
    }

    /// Claims exactly `[start, start + n)`, or nothing.
    pub(super) fn try_claim(&self, start: usize, n: usize) -> bool {
        self.claim(start, n).is_ok()
    }

    fn claim(&self, start: usize, n: usize) -> Result<(), usize> {
        let claimed = self.used.try_claim(start, n);
        if claimed.is_err() && n > 1 {
            // What was set for an instant, another thread may have passed over.
            self.lower(start, n);
        }
        claimed
    }

    /// Gives back `[start, start + n)`, which the caller owns.
    pub(super) fn release(&self, start: usize, n: usize) {
        if n == 0 {
            return;
        }
        self.used.release(start, n);
        self.lower(start, n);
    }

    /// Some of `[start, start + n)` became clear.
    fn lower(&self, start: usize, n: usize) {
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

    /// The lowest lane that is clear, of those of at most a word, or the end.
    fn slabs_from(&self, lane: usize) -> usize {
        self.apart.next_clear_lane(0, lane).unwrap_or_else(|| self.raise(lane))
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
