//! The pages of slabs: which are resident, and how pages without a block in use are purged.
#![allow(unsafe_code, reason = "purges memory")]

use std::ptr::NonNull;
use std::sync::atomic;

use super::{Blocks, SlabTable, UNIT_BYTES, UNPURGED, WORD_BITS, low_bits};
use crate::arena::budget::{self, Limit};
use crate::arena::residency::Allowance;
use crate::arena::zone::{Shortage, Zone};
use crate::classes::{Class, MAX_WORDS};
use crate::os;
use crate::sync::{AtomicU64, Ordering};

/// A look at a slab counts as so many words that are read.
const SLAB_WORDS: usize = 16;

impl SlabTable {
    pub(super) fn return_to_zone(&self, zone: &Zone, slab: NonNull<u8>, slab_bytes: usize, present: u64) {
        let zone_page_bytes = zone.page_bytes();
        let zone_pages = slab_bytes / zone_page_bytes;
        let pages = self.pages(slab_bytes) / zone_pages;
        let mut resident = 0;
        for zone_page in 0..zone_pages {
            let there = present >> (zone_page * pages) & low_bits(pages);
            let missing_bytes = (pages - there.count_ones() as usize) * self.page_bytes(slab_bytes);
            // The zone accounts by its own pages. One that is resident in part counts as resident, and its missing part is accounted too.
            if there != 0 && budget::admit(missing_bytes, Limit::Cap) {
                resident |= 1 << zone_page;
            } else if there != 0 {
                let at = slab.as_ptr().wrapping_add(zone_page * zone_page_bytes);
                zone.forbid_huge_at(at, zone_page_bytes);
                // SAFETY: a page of the zone, in the caller's slab. Nobody uses it.
                let gone = unsafe { self.discard(zone, at, there, slab_bytes) };
                if gone == there {
                    self.returned(gone, slab_bytes);
                } else {
                    // The kernel refuses, as with locked pages: they are still resident. So the page is accounted, whatever the limits
                    // say.
                    budget::exceed(missing_bytes);
                    resident |= 1 << zone_page;
                }
            }
        }
        // SAFETY: a slab of the zone. This thread owns all of its blocks, so nobody uses any.
        unsafe { zone.release_slab(slab, slab_bytes, resident) };
    }

    /// Bytes of the slabs in use that are accounted.
    pub(crate) fn resident_bytes(&self) -> usize {
        let units = 0..self.free_committed.load(atomic::Ordering::Acquire);
        let bytes = |unit: usize| {
            let class = self.class(unit).filter(|&class| begins_slab(unit, class))?;
            let pages = self.present.all()[unit].load(Ordering::Relaxed).count_ones() as usize;
            Some(pages * self.page_bytes(class.slab_bytes()))
        };
        units.filter_map(bytes).sum()
    }

    /// The unit in which a slab's memory is accounted, in bytes: a page, or a 64th of the slab if that is more. So its bits fit in a word.
    fn page_bytes(&self, slab_bytes: usize) -> usize {
        os::page_bytes().max(slab_bytes / WORD_BITS)
    }

    fn pages(&self, slab_bytes: usize) -> usize {
        slab_bytes / self.page_bytes(slab_bytes)
    }

    /// The slab's pages that lie in those pages of the zone that `bits` names, as bits, in a slab of `zone_pages` pages of the zone.
    pub(super) fn slab_pages_of(&self, bits: u64, zone_pages: usize, slab_bytes: usize) -> u64 {
        let each = self.pages(slab_bytes) / zone_pages;
        let pages = each_bit(bits).map(|zone_page| low_bits(each) << (zone_page * each));
        pages.fold(0, |all, pages| all | pages)
    }

    /// The pages that a block touches, as bits.
    fn pages_of(&self, class: Class, block: usize) -> u64 {
        let page = self.page_bytes(class.slab_bytes());
        let (first, last) = (block * class.block_bytes() / page, ((block + 1) * class.block_bytes() - 1) / page);
        low_bits(last + 1) & !low_bits(first)
    }

    /// Accounts for the pages of blocks that the caller owns.
    pub(super) fn make_present(&self, zone: &Zone, class: Class, blocks: Blocks, limit: Limit) -> Result<(), Shortage> {
        let present = &self.present.all()[blocks.unit];
        let before = present.load(Ordering::Relaxed);
        if before == low_bits(self.pages(class.slab_bytes())) {
            return Ok(());
        }
        let touched = each_bit(blocks.mask).map(|bit| self.pages_of(class, blocks.word * WORD_BITS + bit));
        let missing = touched.fold(0, |all, pages| all | pages) & !before;
        if missing == 0 {
            return Ok(());
        }
        let missing_bytes = missing.count_ones() as usize * self.page_bytes(class.slab_bytes());
        if !budget::admit(missing_bytes, limit) {
            return Err(Shortage::OverBudget);
        }
        // Since then, another thread may have accounted for a page that its block shares with ours.
        let twice = present.fetch_or(missing, Ordering::Relaxed) & missing;
        let twice_bytes = twice.count_ones() as usize * self.page_bytes(class.slab_bytes());
        budget::unaccount(twice_bytes);
        zone.count(0, missing_bytes - twice_bytes);
        Ok(())
    }

    /// Purges pages of a slab, and returns which of them went.
    ///
    /// # Safety
    /// Nobody needs the contents of the slab's `pages`.
    unsafe fn discard(&self, zone: &Zone, slab: *mut u8, pages: u64, slab_bytes: usize) -> u64 {
        let page = self.page_bytes(slab_bytes);
        let mut gone = 0;
        let mut left = pages;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let len = (left >> first).trailing_ones() as usize;
            zone.counters().system_call();
            // SAFETY: the caller's.
            if unsafe { os::discard(slab.wrapping_add(first * page), len * page) }.is_ok() {
                gone |= low_bits(first + len) & !low_bits(first);
            }
            left &= !low_bits(first + len);
        }
        gone
    }

    /// Takes pages off the account that were purged. Returns their bytes.
    fn returned(&self, pages: u64, slab_bytes: usize) -> usize {
        let bytes = pages.count_ones() as usize * self.page_bytes(slab_bytes);
        budget::returned(bytes);
        bytes
    }

    /// Purges the free pages of slabs until the allowance is spent, or no slab has any. Returns how many bytes went.
    ///
    /// It looks only at slabs in which a block was freed since their last purge, so each look is paid for by a free. The next call
    /// continues behind the slab at which this one stops.
    pub(crate) fn purge(&self, zone: &Zone, allowance: &mut Allowance) -> usize {
        let unpurged = self.hints.set(UNPURGED);
        let begun = self.purge_from.load(atomic::Ordering::Relaxed);
        let (mut from, mut is_second_half) = (begun, begun == 0);
        let mut gone = 0;
        while !allowance.is_spent() {
            match unpurged.first(from).filter(|&unit| !is_second_half || begun == 0 || unit < begun) {
                Some(unit) => {
                    // Cleared before the look: a block that is freed during the look sets the hint again.
                    unpurged.clear(unit);
                    let went = self.purge_slab(zone, unit);
                    allowance.spend(went, usize::from(went > 0), SLAB_WORDS);
                    (gone, from) = (gone + went, unit + 1);
                }
                None if is_second_half => break,
                None => (from, is_second_half) = (0, true),
            }
        }
        self.purge_from.store(from, atomic::Ordering::Relaxed);
        gone
    }

    fn purge_slab(&self, zone: &Zone, unit: usize) -> usize {
        let Some(class) = self.class(unit).filter(|&class| begins_slab(unit, class)) else { return 0 };
        let free_blocks = |word| self.free_word(unit, word).load(Ordering::Relaxed).count_ones() as usize;
        let free_bytes = (0..class.words()).map(free_blocks).sum::<usize>() * class.block_bytes();
        let is_resident = self.present.all()[unit].load(Ordering::Relaxed) != 0;
        // Half a page: the last page of a slab may hold less than a page of blocks.
        let min_bytes = self.page_bytes(class.slab_bytes()) / 2;
        if !is_resident || (class.block_bytes() < min_bytes && free_bytes < min_bytes) {
            return 0;
        }
        let mut gone = 0;
        self.with_idle_pages(zone, unit, class, |slab, present, idle| {
            let idle = present.load(Ordering::Relaxed) & idle;
            if idle != 0 {
                zone.forbid_huge_at(slab, class.slab_bytes());
            }
            // SAFETY: every block in these pages is free and ours.
            let dropped = unsafe { self.discard(zone, slab, idle, class.slab_bytes()) };
            // Each owner of a block may purge the pages behind the last block, so another thread may have done so already.
            let dropped = present.fetch_and(!dropped, Ordering::Relaxed) & dropped;
            gone = self.returned(dropped, class.slab_bytes());
        });
        gone
    }

    /// Calls `work` on a slab, if it is one of this class: with its address, its accounted pages, and the pages without a block in use. The
    /// caller owns all free blocks during the call, so that no thread accounts for these pages.
    fn with_idle_pages(&self, zone: &Zone, unit: usize, class: Class, work: impl FnOnce(*mut u8, &AtomicU64, u64)) {
        let mut free = [0; MAX_WORDS];
        for (word, free) in free[..class.words()].iter_mut().enumerate() {
            *free = self.free_word(unit, word).swap(0, Ordering::SeqCst);
        }
        if free.iter().any(|&free| free != 0) && self.class(unit) == Some(class) {
            let in_use = (0..class.words())
                .flat_map(|word| each_bit(class.full_word(word) & !free[word]).map(move |bit| word * WORD_BITS + bit));
            let needed = in_use.fold(0, |needed, block| needed | self.pages_of(class, block));
            let slab = zone.base().as_ptr().wrapping_add(unit * UNIT_BYTES);
            work(slab, &self.present.all()[unit], low_bits(self.pages(class.slab_bytes())) & !needed);
        }
        // Also if the slab has another class, and its blocks were taken by mistake.
        for (word, &mask) in free[..class.words()].iter().enumerate().filter(|&(_, &mask)| mask != 0) {
            self.set_free_or_retire(zone, Blocks { unit, word, mask });
        }
    }
}

/// Whether a slab of this class may begin at a unit.
fn begins_slab(unit: usize, class: Class) -> bool {
    unit * UNIT_BYTES % class.slab_bytes() == 0
}

fn each_bit(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let bit = (left != 0).then(|| left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        bit
    })
}
