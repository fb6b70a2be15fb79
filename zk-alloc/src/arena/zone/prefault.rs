//! Prefaulting: which pages around a run or a slab the kernel brings in with it.
#![allow(unsafe_code, reason = "prefaults memory")]

use std::ops::Range;

use super::{Limit, Populate, Tenant, Zone, budget, layout};
use crate::os;

impl Zone {
    /// In pieces of how many granules the zone pages in edges at a granule.
    pub(super) fn piece(&self, granule: usize) -> usize {
        let resident_bytes = budget::resident_bytes();
        self.granules(layout::page_in_bytes(&self.spec, self.bytes(granule), resident_bytes))
    }

    /// Pages in the pieces that the caller's run begins and ends in. Those that it fills, the threads that touch them page in, or
    /// do not. If it `is_sparse`, only those are that come as a huge page at the first touch anyhow.
    pub(super) fn page_in_edges(&self, start: usize, granules: usize, is_sparse: bool) {
        let (last, end) = (start + granules - 1, start + granules);
        let (from, len) = self.page_in_piece_of(start, start, end, is_sparse);
        if last / len * len > from {
            self.page_in_piece_of(last, start, end, is_sparse);
        }
    }

    /// Pages in the piece that holds a granule of the caller's run, and returns where it begins and its length.
    pub(super) fn page_in_piece_of(&self, granule: usize, start: usize, end: usize, is_sparse: bool) -> (usize, usize) {
        let len = self.piece(granule);
        let from = granule / len * len;
        if !is_sparse || self.comes_whole(from) {
            if let Some(rest) =
                self.fresh_rest(from, len, start, end).filter(|_| self.pays_ahead(from, len, start..end))
            {
                self.page_in_piece(rest, start.max(from)..end.min(from + len));
            }
        }
        (from, len)
    }

    /// As [`page_in_edges`](Self::page_in_edges), for a slab: it is paged in with its neighbours where pieces are longer than
    /// it, and otherwise as its blocks are touched; but not in huge pages, of which the first touch would bring all of it. `false`
    /// where that is beyond the limit.
    pub(super) fn page_in_around_slab(&self, start: usize, granules: usize, limit: Limit) -> bool {
        let len = self.piece(start);
        let (from, end) = (start / len * len, start + granules);
        let resident = self.residency.resident(start, granules);
        if resident == granules || len <= granules {
            return true;
        }
        let rest = if resident == 0 { self.fresh_rest(from, len, start, end) } else { None };
        let rest = rest.filter(|_| self.pays_ahead(from, len, start..end));
        let comes_whole = self.comes_whole(start);
        let limit = if comes_whole { limit } else { Limit::Peak };
        if (rest.is_some() || comes_whole) && self.residency.book(start, granules, limit).is_some() {
            self.page_in_piece(rest.unwrap_or_default(), start..end);
            return true;
        }
        !comes_whole
    }

    /// Whether to page in the piece of `len` granules at `from` ahead, for what the caller takes.
    pub(super) fn pays_ahead(&self, from: usize, len: usize, taken: Range<usize>) -> bool {
        let is_dense = |sample| self.is_densely_used(sample);
        self.comes_whole(from) || self.ahead.pays(from..from + len, &taken, is_dense)
    }

    /// Whether more than half of what was handed out of a piece is in memory, as far as the system says; `None` where that was
    /// little.
    pub(super) fn is_densely_used(&self, piece: Range<usize>) -> Option<bool> {
        let (start, len) = (piece.start, piece.end.min(self.runs.len()) - piece.start);
        // What is booked was handed out, and may be free again; and slabs are in use, whose pages the zone does not book.
        let was_handed_out =
            |&granule: &usize| self.residency.resident(granule, 1) + self.runs.used().count(granule, 1) > 0;
        let handed_out = (start..start + len).filter(was_handed_out).count();
        if 16 * handed_out < len {
            return None;
        }
        let in_memory = self.residency.bytes_in_memory(start, len);
        in_memory.map_or(Some(true), |in_memory| Some(in_memory > self.bytes(handed_out) / 2))
    }

    /// What the piece of `len` granules at `from` has before and behind `start..end`, as places and lengths; `None` if some of it
    /// is resident already, or there is nothing.
    pub(super) fn fresh_rest(&self, from: usize, len: usize, start: usize, end: usize) -> Option<[(usize, usize); 2]> {
        let until = (from + len).min(self.committed.granules());
        let rest = [(from, start.clamp(from, until)), (end.clamp(from, until), until)];
        let rest = rest.map(|(from, until)| (from, until - from));
        let is_fresh = rest.iter().all(|&(from, len)| self.residency.resident(from, len) == 0);
        (is_fresh && rest.iter().any(|&(_, len)| len > 0)).then_some(rest)
    }

    /// Pages in `own` granules of the caller's together with the rest of their piece, which is claimed for that time: what is
    /// booked must be owned.
    pub(super) fn page_in_piece(&self, rest: [(usize, usize); 2], own: Range<usize>) {
        let comes_whole = self.comes_whole(own.start);
        let mut paged = own.clone();
        let mut is_short = false;
        // A huge page comes whether it is booked or not.
        let limit = if comes_whole { Limit::Cap } else { Limit::Peak };
        // Where it fails, another thread has the granule, and books it, or a slab has.
        let mut claim = |granule| {
            let claimed = self.runs.try_claim(granule, 1);
            if claimed && self.residency.book(granule, 1, limit).is_none() {
                self.runs.release(granule, 1);
                is_short = true;
                return false;
            }
            claimed
        };
        let [before, behind] = rest.map(|(at, len)| at..at + len);
        let piece = before.start.min(own.start)..behind.end.max(own.end);
        // Paged in is what joins the caller's granules. A huge page comes with all of it.
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
        // Also a huge page, which would come at the first touch: where the kernel has none, or has split this one before, it
        // would not come, and what is booked would not be there. Free only afterwards: another thread that gave it back
        // meanwhile would say that it is not there.
        self.residency.page_in(paged.start, paged.len());
        self.runs.release(paged.start, own.start - paged.start);
        self.runs.release(own.end, paged.end - own.end);
        // What the cap had no room for came all the same.
        if is_short && comes_whole {
            let calls = self.give_back_unbooked(self.address(piece.start), self.bytes(piece.len()));
            (0..calls).for_each(|_| self.counters().system_call());
        }
    }

    /// Books `bytes` of the zone's free memory, so that whoever is handed it finds it resident, and has `page_in` bring it in.
    /// Returns how many bytes were; 0 if the zone or the cap has no room for them.
    pub(crate) fn populate(&self, tenant: Tenant, bytes: usize, page_in: impl FnOnce(Populate<'_>)) -> usize {
        let granules = self.granules(bytes.min(self.capacity_bytes()));
        let Some(start) = self.runs.claim_first_fit(tenant, granules, 1, 0) else { return 0 };
        if self.make_usable(start, granules, Limit::Cap, true).is_err() {
            return 0;
        }
        page_in(Populate { zone: self, start, granules });
        self.runs.release(start, granules);
        self.bytes(granules)
    }
}

impl Populate<'_> {
    /// Pages in one of `parts` equal parts.
    pub(crate) fn part(&self, index: usize, parts: usize) {
        let share = self.granules.div_ceil(parts.max(1));
        let from = self.granules.min(index * share);
        let len = share.min(self.granules - from);
        if len > 0 {
            let (at, bytes) = (self.zone.address(self.start + from), self.zone.bytes(len));
            self.zone.counters().system_call();
            // SAFETY: granules that `populate` claimed, committed, which nobody else knows of.
            if let Err(refused) = unsafe { os::populate(at.as_ptr(), bytes) } {
                self.zone.counters().refused(refused, "page in", bytes);
            }
        }
    }
}
