//! Prefaulting: which pages around a run or a slab the kernel brings in with it.
#![allow(unsafe_code, reason = "prefaults memory")]

use std::ops::Range;

use super::{Limit, Populate, Tenant, Zone, budget, layout};
use crate::os;

impl Zone {
    /// The length of the prefaulted chunks around a granule, in granules.
    fn chunk(&self, granule: usize) -> usize {
        let resident_bytes = budget::resident_bytes();
        self.granules(layout::prefault_bytes(&self.spec, self.bytes(granule), resident_bytes))
    }

    /// Prefaults the chunks that the caller's run begins and ends in. The chunks between them are left to the threads that touch them.
    /// A run that `is_sparse` gets only chunks that the first touch would fault in as a huge page.
    pub(super) fn prefault_edges(&self, start: usize, granules: usize, is_sparse: bool) {
        let (last, end) = (start + granules - 1, start + granules);
        let (from, len) = self.prefault_chunk_of(start, start, end, is_sparse);
        if last / len * len > from {
            self.prefault_chunk_of(last, start, end, is_sparse);
        }
    }

    /// Prefaults the chunk that holds a granule of the caller's run. Returns the start and the length of the chunk.
    fn prefault_chunk_of(&self, granule: usize, start: usize, end: usize, is_sparse: bool) -> (usize, usize) {
        let len = self.chunk(granule);
        let from = granule / len * len;
        if !is_sparse || self.comes_whole(from) {
            if let Some(rest) =
                self.fresh_rest(from, len, start, end).filter(|_| self.pays_ahead(from, len, start..end))
            {
                self.prefault_chunk(rest, start.max(from)..end.min(from + len));
            }
        }
        (from, len)
    }

    /// As [`prefault_edges`](Self::prefault_edges), for a slab. If chunks are longer than the slab, it is prefaulted with its neighbours.
    /// Else its blocks fault in as they are touched, unless the first touch faults in a huge page. Returns `false` where that is
    /// beyond the limit.
    pub(super) fn prefault_around_slab(&self, start: usize, granules: usize, limit: Limit) -> bool {
        let len = self.chunk(start);
        let (from, end) = (start / len * len, start + granules);
        let resident = self.residency.resident(start, granules);
        if resident == granules || len <= granules {
            return true;
        }
        let rest = if resident == 0 { self.fresh_rest(from, len, start, end) } else { None };
        let rest = rest.filter(|_| self.pays_ahead(from, len, start..end));
        let comes_whole = self.comes_whole(start);
        let limit = if comes_whole { limit } else { Limit::Peak };
        if (rest.is_some() || comes_whole) && self.residency.account(start, granules, limit).is_some() {
            self.prefault_chunk(rest.unwrap_or_default(), start..end);
            return true;
        }
        !comes_whole
    }

    /// Whether to prefault the chunk of `len` granules at `from`, for the granules that the caller takes.
    fn pays_ahead(&self, from: usize, len: usize, taken: Range<usize>) -> bool {
        let is_dense = |sample| self.is_densely_used(sample);
        self.comes_whole(from) || self.ahead.pays(from..from + len, &taken, is_dense)
    }

    /// Whether more than half of the granules of a chunk that were handed out are in memory, by the kernel's account. `None` if few
    /// were handed out.
    fn is_densely_used(&self, chunk: Range<usize>) -> Option<bool> {
        let (start, len) = (chunk.start, chunk.end.min(self.runs.len()) - chunk.start);
        // An accounted granule was handed out, and may be free again. Slabs are in use, and the zone does not account for their pages.
        let handed_out = self.residency.resident_bits().count_with(self.runs.used(), start, len);
        if 16 * handed_out < len {
            return None;
        }
        let in_memory = self.residency.bytes_in_memory(start, len);
        in_memory.map_or(Some(true), |in_memory| Some(in_memory > self.bytes(handed_out) / 2))
    }

    /// The parts of the chunk of `len` granules at `from` that lie before and behind `start..end`, as places and lengths. `None` if some
    /// of them is resident already, or both are empty.
    fn fresh_rest(&self, from: usize, len: usize, start: usize, end: usize) -> Option<[(usize, usize); 2]> {
        let until = (from + len).min(self.committed.granules());
        let rest = [(from, start.clamp(from, until)), (end.clamp(from, until), until)];
        let rest = rest.map(|(from, until)| (from, until - from));
        let is_fresh = rest.iter().all(|&(from, len)| self.residency.resident(from, len) == 0);
        (is_fresh && rest.iter().any(|&(_, len)| len > 0)).then_some(rest)
    }

    /// Prefaults `own` granules of the caller together with the rest of their chunk. The rest is claimed for that time, because only
    /// an owner may account for it.
    fn prefault_chunk(&self, rest: [(usize, usize); 2], own: Range<usize>) {
        let comes_whole = self.comes_whole(own.start);
        let mut paged = own.clone();
        let mut is_short = false;
        // A huge page comes whether it is accounted or not.
        let limit = if comes_whole { Limit::Cap } else { Limit::Peak };
        // If the claim fails, another thread or a slab has the granule, and accounts for it.
        let mut claim = |granule| {
            let claimed = self.runs.try_claim(granule, 1);
            if claimed && self.residency.account(granule, 1, limit).is_none() {
                self.runs.release(granule, 1);
                is_short = true;
                return false;
            }
            claimed
        };
        let [before, behind] = rest.map(|(at, len)| at..at + len);
        let chunk = before.start.min(own.start)..behind.end.max(own.end);
        // The prefaulted granules join the caller's. A huge page brings all of the chunk.
        for granule in before.rev() {
            match granule + 1 == paged.start {
                true if claim(granule) => paged.start = granule,
                false if comes_whole && claim(granule) => self.runs.release(granule, 1),
                _ => {}
            }
        }
        for granule in behind {
            match granule == paged.end {
                true if claim(granule) => paged.end = granule + 1,
                false if comes_whole && claim(granule) => self.runs.release(granule, 1),
                _ => {}
            }
        }
        self.allow_huge(own.clone());
        // A huge page is prefaulted too, though the first touch would bring it. The kernel may have none, or may have split this one
        // before: then accounted memory would not be there. The rest is freed only after that, so that no other thread purges it first.
        self.residency.prefault(paged.start, paged.len());
        self.runs.release(paged.start, own.start - paged.start);
        self.runs.release(own.end, paged.end - own.end);
        // The huge page also brought memory that the cap has no room for.
        if is_short && comes_whole {
            let calls = self.purge_unaccounted(self.address(chunk.start), self.bytes(chunk.len()));
            (0..calls).for_each(|_| self.counters().system_call());
        }
    }

    /// Accounts for `bytes` of the zone's free memory for later requests, and has `prefault` fault it in. Returns how many bytes were
    /// accounted: 0 if the zone or the cap has no room for them.
    pub(crate) fn populate(&self, tenant: Tenant, bytes: usize, prefault: impl FnOnce(Populate<'_>)) -> usize {
        let granules = self.granules(bytes.min(self.capacity_bytes()));
        let Some(start) = self.runs.claim_first_fit(self.first_of(tenant), granules, 1, 0) else { return 0 };
        if self.make_usable(start, granules, Limit::Cap, true).is_err() {
            return 0;
        }
        prefault(Populate { zone: self, start, granules });
        self.runs.release(start, granules);
        self.bytes(granules)
    }
}

impl Populate<'_> {
    /// Prefaults one of `parts` equal parts.
    pub(crate) fn part(&self, index: usize, parts: usize) {
        let share = self.granules.div_ceil(parts.max(1));
        let from = self.granules.min(index * share);
        let len = share.min(self.granules - from);
        if len > 0 {
            let (at, bytes) = (self.zone.address(self.start + from), self.zone.bytes(len));
            self.zone.counters().system_call();
            // SAFETY: granules that `populate` claimed and committed, and that nobody else knows of.
            if let Err(refused) = unsafe { os::populate(at.as_ptr(), bytes) } {
                self.zone.counters().refused(refused, "prefault", bytes);
            }
        }
    }
}
