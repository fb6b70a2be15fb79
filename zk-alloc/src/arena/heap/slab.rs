//! Slabs: memory for the small and medium sizes. A slab is a part of its zone that is cut into blocks of one size class.
//!
//! A slab has a bit for each of its blocks, which is set while the block is *free*. Clearing the bit takes ownership of the block, and only
//! the owner sets the bit again. Ownership needs no other synchronisation, and a signal or a fork may interrupt a thread anywhere.
//!
//! A slab keeps its class while any of its blocks has an owner. A thread that owns all blocks may return the slab to its zone. A thread
//! that finds a slab by a hint knows nothing about the slab until it owns one of its blocks. Only then does it read the class.
//!
//! Metadata is in separate tables, never in the slab. The zone counts a slab's resident memory page by page: a live block keeps only its
//! own pages resident, and [`SlabTable::purge`] purges the others.
#![allow(unsafe_code, reason = "computes addresses of slabs, purges memory")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{self, AtomicUsize};

use crate::accounts::{self, Limit};
use crate::arena::pages::bitmap::{HintSets, Table, WORD_BITS, each_bit, low_bits};
use crate::arena::pages::layout;
use crate::arena::pages::memory::Allowance;
use crate::arena::pages::zone::{Shortage, Zone};
use crate::classes::{self, Class, MAX_WORDS};
#[cfg(feature = "c-api")]
use crate::os;
use crate::os::Errno;
use crate::sync::{AtomicU8, AtomicU64, Ordering};

/// The unit of the tables: the smallest slab.
const UNIT_BYTES: usize = classes::MIN_SLAB_BYTES;
/// The number of units whose bitmaps are committed at once.
const COMMIT_UNITS: usize = 2048;
/// The number of the hint set for slabs in which a block was freed since their last purge. No class has this number.
const UNPURGED: usize = 0;

/// The cost of visiting a slab, in words of an [`Allowance`].
const SLAB_WORDS: usize = 16;

/// The metadata of all slabs, indexed by unit.
pub(crate) struct SlabTable {
    base: usize,
    units: usize,
    /// For each unit, the number of the class of its slab; 0 where there is no slab.
    classes: Table<AtomicU8>,
    /// Which blocks of a slab are free; all zeroes where there is no slab. The table is ordered by word of the bitmap, then by the slab's
    /// first unit. Most slabs have one word, and these words are adjacent.
    free: Table<AtomicU64>,
    free_committed: AtomicUsize,
    /// For each class, the slabs that may have free blocks.
    hints: HintSets<{ classes::COUNT }>,
    /// The number of slabs in use, and their total size in bytes. For [`stats`](crate::stats()) only.
    slabs: AtomicUsize,
    in_use_bytes: AtomicUsize,
    /// The total size of the blocks that are not free, in bytes.
    taken_bytes: AtomicUsize,
    /// The unit at which the next purge continues.
    purge_from: AtomicUsize,
}

/// Some blocks of a slab, all in one word of its bitmap. The caller owns them.
#[derive(Clone, Copy)]
struct Blocks {
    unit: usize,
    word: usize,
    mask: u64,
}

impl SlabTable {
    /// Creates the table for the slabs of a zone.
    ///
    /// # Errors
    /// The system's error, if it refuses memory for the table.
    pub(crate) fn new(zone: &Zone) -> Result<Self, Errno> {
        let units = zone.capacity_bytes().min(layout::SLAB_SPAN_BYTES) / UNIT_BYTES;
        Ok(Self {
            base: zone.base().addr().get(),
            units,
            classes: Table::new(units)?,
            free: Table::reserve(units * MAX_WORDS)?,
            free_committed: AtomicUsize::new(0),
            hints: HintSets::new(units)?,
            slabs: AtomicUsize::new(0),
            in_use_bytes: AtomicUsize::new(0),
            taken_bytes: AtomicUsize::new(0),
            purge_from: AtomicUsize::new(0),
        })
    }

    /// Returns the number of slabs in use, and their total size in bytes.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.slabs.load(atomic::Ordering::Relaxed), self.in_use_bytes.load(atomic::Ordering::Relaxed))
    }

    /// Takes blocks of a class from one slab, at least one and at most `found.len()`, and writes their addresses to `found`. Returns their
    /// number.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn take(&self, zone: &Zone, class: Class, limit: Limit, found: &mut [usize]) -> Result<usize, Shortage> {
        let taken = self.find(zone, class, limit, found)?;
        let bytes = taken * class.block_bytes();
        self.taken_bytes.fetch_add(bytes, atomic::Ordering::Relaxed);
        zone.count(bytes, 0);
        Ok(taken)
    }

    fn find(&self, zone: &Zone, class: Class, limit: Limit, found: &mut [usize]) -> Result<usize, Shortage> {
        let hints = self.hints.set(class.number() as usize);
        let mut from = 0;
        while let Some(unit) = hints.first(from) {
            let taken = self.take_from(zone, unit, class, limit, found)?;
            if taken > 0 {
                return Ok(taken);
            }
            hints.clear(unit);
            // A block may have been freed before the hint was cleared. The thread that freed the block may have seen the hint still set,
            // and not set it again.
            if self.has_free(unit, class) {
                hints.set(unit);
            }
            from = unit + 1;
        }
        self.take_from_new(zone, class, limit, found)
    }

    fn free_word(&self, unit: usize, word: usize) -> &AtomicU64 {
        &self.free.all()[word * self.units + unit]
    }

    fn has_free(&self, unit: usize, class: Class) -> bool {
        (0..class.words()).any(|word| self.free_word(unit, word).load(Ordering::SeqCst) != 0)
            && self.class(unit) == Some(class)
    }

    /// Returns the class of the block at an address of the zone, or `None` if the address is in no slab.
    #[inline(always)]
    pub(crate) fn class_at(&self, address: usize) -> Option<Class> {
        // The caller owns the memory at the address, so its class can't change. The class became visible when the memory was handed out.
        let number = self.classes.all().get(address.wrapping_sub(self.base) / UNIT_BYTES)?;
        Class::from_number(number.load(Ordering::Relaxed))
    }

    fn class(&self, unit: usize) -> Option<Class> {
        Class::from_number(self.classes.all()[unit].load(Ordering::Relaxed))
    }

    fn set_class(&self, units: Range<usize>, number: u8) {
        self.classes.all()[units].iter().for_each(|unit| unit.store(number, Ordering::Relaxed));
    }

    /// Like [`take`](Self::take), from a given slab that may have free blocks. In the meantime, the slab may have been retired or given
    /// another class.
    fn take_from(
        &self,
        zone: &Zone,
        unit: usize,
        class: Class,
        limit: Limit,
        found: &mut [usize],
    ) -> Result<usize, Shortage> {
        let mut taken = 0;
        for word in 0..class.words() {
            let free = self.free_word(unit, word);
            let mask = lowest(by_lines(class, free.load(Ordering::Relaxed)), found.len() - taken);
            if mask == 0 {
                continue;
            }
            // Acquire pairs with the Release of `set_free`: this thread sees everything that the blocks' last owners did to them, and the
            // stores that made this a slab of its class.
            let mask = mask & free.fetch_and(!mask, Ordering::SeqCst);
            let blocks = Blocks { unit, word, mask };
            if mask == 0 {
                continue;
            }
            // From here on, the slab's class can't change.
            if self.class(unit) != Some(class) {
                self.give(zone, blocks);
                break;
            }
            if let Err(shortage) = self.account(zone, class, blocks, limit) {
                self.give(zone, blocks);
                return if taken > 0 { Ok(taken) } else { Err(shortage) };
            }
            taken += self.list(class, blocks, &mut found[taken..]);
            if taken == found.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn take_from_new(&self, zone: &Zone, class: Class, limit: Limit, found: &mut [usize]) -> Result<usize, Shortage> {
        let slab_bytes = class.slab_bytes();
        let slab = zone.claim_slab(slab_bytes, limit)?;
        let unit = (slab.addr().get() - self.base) / UNIT_BYTES;
        let units = slab_bytes / UNIT_BYTES;
        if unit + units > self.units || !self.commit_free(unit + units) {
            // SAFETY: claimed above, and not handed out.
            unsafe { zone.release_slab(slab, slab_bytes) };
            return Err(Shortage::Full);
        }
        let is_resident = zone.slab_pages(slab, slab_bytes) != 0;
        self.slabs.fetch_add(1, atomic::Ordering::Relaxed);
        self.in_use_bytes.fetch_add(slab_bytes, atomic::Ordering::Relaxed);
        self.set_class(unit..unit + units, class.number());
        // This thread owns all blocks. It frees the blocks that it does not want, and other threads may take them at once.
        let wanted = lowest(class.full_word(0), found.len());
        let blocks = Blocks { unit, word: 0, mask: wanted };
        let accounted = self.account(zone, class, blocks, limit);
        let ours = if accounted.is_ok() { wanted } else { 0 };
        let taken = self.list(class, Blocks { mask: ours, ..blocks }, found);
        // Word 0 is freed last: until then, not all blocks are free, so no thread returns the slab to its zone.
        for word in (0..class.words()).rev() {
            let mask = class.full_word(word) & if word == 0 { !ours } else { u64::MAX };
            if mask != 0 {
                self.set_free_or_retire(zone, Blocks { unit, word, mask });
            }
        }
        if is_resident {
            self.hints.set(UNPURGED).set(unit);
        }
        accounted.map(|()| taken)
    }

    /// Writes the addresses of the blocks to `found`, and returns their number.
    fn list(&self, class: Class, blocks: Blocks, found: &mut [usize]) -> usize {
        let first = self.base + blocks.unit * UNIT_BYTES + blocks.word * WORD_BITS * class.block_bytes();
        let bits = each_bit(blocks.mask);
        bits.zip(found).map(|(bit, place)| *place = first + bit * class.block_bytes()).count()
    }

    /// Frees blocks of a class. They must not be used afterwards.
    pub(crate) fn put(&self, zone: &Zone, class: Class, addresses: impl Iterator<Item = usize>) {
        let mut last: Option<Blocks> = None;
        let mut count = 0;
        for address in addresses {
            count += 1;
            let one = self.block_at(class, address);
            match &mut last {
                // Blocks of one word are freed together.
                Some(last) if (last.unit, last.word) == (one.unit, one.word) => {
                    check_freed_once(last.mask & one.mask, class, || address);
                    last.mask |= one.mask;
                }
                last => last.replace(one).into_iter().for_each(|blocks| self.give(zone, blocks)),
            }
        }
        let bytes = count * class.block_bytes();
        self.taken_bytes.fetch_sub(bytes, atomic::Ordering::Relaxed);
        accounts::released(bytes);
        last.into_iter().for_each(|blocks| self.give(zone, blocks));
    }

    /// Returns the total size of the blocks that are not free, in bytes.
    pub(crate) fn taken_bytes(&self) -> usize {
        self.taken_bytes.load(atomic::Ordering::Relaxed)
    }

    fn block_at(&self, class: Class, address: usize) -> Blocks {
        let offset = address - self.base;
        let slab = offset & !(class.slab_bytes() - 1);
        let block = class.block_at(offset - slab);
        Blocks { unit: slab / UNIT_BYTES, word: block / WORD_BITS, mask: 1 << (block % WORD_BITS) }
    }

    /// Returns the address of the first of these blocks.
    fn address_of(&self, class: Class, blocks: Blocks) -> usize {
        let block = blocks.word * WORD_BITS + blocks.mask.trailing_zeros() as usize;
        self.base + blocks.unit * UNIT_BYTES + block * class.block_bytes()
    }

    /// Whether an address in a slab of this class is the first of a block.
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) fn begins_block(&self, class: Class, address: usize) -> bool {
        class.begins_block((address - self.base) & (class.slab_bytes() - 1))
    }

    /// Returns the address of the block that contains an address.
    #[cfg(feature = "c-api")]
    pub(crate) fn block_around(&self, class: Class, address: usize) -> usize {
        self.address_of(class, self.block_at(class, address))
    }

    /// Frees blocks that the caller owns, and returns their slab to the zone if all of its blocks are free. The next purge visits the slab.
    fn give(&self, zone: &Zone, blocks: Blocks) {
        self.set_free_or_retire(zone, blocks);
        // The hint is set last, so that a thread that clears it finds the blocks free. If the slab was retired, the hint only costs a
        // visit.
        self.hints.set(UNPURGED).set(blocks.unit);
    }

    /// Like [`give`](Self::give), but sets no hint for the next purge.
    fn set_free_or_retire(&self, zone: &Zone, blocks: Blocks) {
        // The class is read while the caller owns the blocks: afterwards, the slab may be retired.
        let Some(class) = self.class(blocks.unit) else { return };
        if self.set_free(class, blocks) | blocks.mask == class.full_word(blocks.word) {
            self.retire_if_empty(zone, blocks.unit, class);
        }
    }

    /// Frees blocks that the caller owns, in a slab of this class. Returns the bits of their word that were set before.
    fn set_free(&self, class: Class, blocks: Blocks) -> u64 {
        let Blocks { unit, word, mask } = blocks;
        // Release: the caller's accesses to the blocks happen before those of the next owner.
        let before = self.free_word(unit, word).fetch_or(mask, Ordering::SeqCst);
        check_freed_once(before & mask, class, || self.address_of(class, Blocks { mask: before & mask, ..blocks }));
        // A thread that found this word empty may have cleared the hint.
        if before == 0 {
            self.hints.set(class.number() as usize).set(unit);
        }
        before
    }

    /// Returns a slab to its zone if all of its blocks are free.
    fn retire_if_empty(&self, zone: &Zone, unit: usize, mut class: Class) {
        let is_empty = |class: Class| {
            (0..class.words()).all(|word| self.free_word(unit, word).load(Ordering::SeqCst) == class.full_word(word))
        };
        while is_empty(class) {
            let claimed = self.claim_full_words(unit, class);
            // If no word was claimed, another thread owns blocks of the first word. That thread checks the slab when it frees them.
            let Some(now) = self.class(unit).filter(|_| claimed > 0) else { return };
            if now == class && claimed == class.words() {
                return self.retire(zone, unit, class);
            }
            // Another thread owns some of the blocks, or the slab now has another class and some of its words look like full words of the
            // old class. While this thread owned the claimed words, no other thread could find the slab empty, so this thread checks again.
            for word in 0..claimed {
                self.set_free(now, Blocks { unit, word, mask: class.full_word(word) });
            }
            class = now;
        }
    }

    /// Claims the blocks of a slab word by word, up to the first word whose blocks are not all free. Returns how many words the caller now
    /// owns.
    fn claim_full_words(&self, unit: usize, class: Class) -> usize {
        let claim = |&word: &usize| {
            let full = class.full_word(word);
            self.free_word(unit, word).compare_exchange(full, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        (0..class.words()).take_while(claim).count()
    }

    /// Returns a slab to its zone. The caller owns all of its blocks.
    fn retire(&self, zone: &Zone, unit: usize, class: Class) {
        let slab_bytes = class.slab_bytes();
        let units = slab_bytes / UNIT_BYTES;
        self.set_class(unit..unit + units, 0);
        self.hints.set(class.number() as usize).clear(unit);
        self.slabs.fetch_sub(1, atomic::Ordering::Relaxed);
        self.in_use_bytes.fetch_sub(slab_bytes, atomic::Ordering::Relaxed);
        // SAFETY: a slab of the zone. This thread owns all of its blocks, so no other thread uses them.
        unsafe { zone.release_slab(slab_at(zone, unit), slab_bytes) };
    }

    /// Makes the bitmaps of units below `until` usable. Returns `false` if the kernel refuses.
    fn commit_free(&self, until: usize) -> bool {
        let before = self.free_committed.load(atomic::Ordering::Acquire);
        if until <= before {
            return true;
        }
        let target = until.next_multiple_of(COMMIT_UNITS).min(self.units);
        let word_by_word = |word| self.free.commit(word * self.units + before, word * self.units + target).is_ok();
        let committed = (0..MAX_WORDS).all(word_by_word);
        if committed {
            self.free_committed.fetch_max(target, atomic::Ordering::AcqRel);
        }
        committed
    }

    // The pages of slabs: which of them are resident, and how pages without a block in use are purged.

    /// Returns how many bytes of the slabs in use are counted as resident.
    pub(crate) fn resident_bytes(&self, zone: &Zone) -> usize {
        let units = 0..self.free_committed.load(atomic::Ordering::Acquire);
        let pages = |unit: usize| {
            let class = self.class(unit).filter(|&class| begins_slab(unit, class))?;
            Some(zone.slab_pages(slab_at(zone, unit), class.slab_bytes()).count_ones() as usize)
        };
        units.filter_map(pages).sum::<usize>() * zone.page_bytes()
    }

    /// Counts as resident the pages of blocks that the caller owns.
    fn account(&self, zone: &Zone, class: Class, blocks: Blocks, limit: Limit) -> Result<(), Shortage> {
        let slab = slab_at(zone, blocks.unit);
        // Most slabs are fully resident.
        if zone.slab_pages(slab, class.slab_bytes()).count_ones() as usize * zone.page_bytes() == class.slab_bytes() {
            return Ok(());
        }
        let touched = each_bit(blocks.mask).map(|bit| pages_of(zone, class, blocks.word * WORD_BITS + bit));
        zone.account_slab(slab, touched.fold(0, |all, pages| all | pages), limit)
    }

    /// Purges the free pages of slabs until the allowance is spent or no slab has such pages left. Returns how many bytes it purged.
    ///
    /// It visits only new slabs, and those in which a block was freed since their last purge. The next call continues after the slab at
    /// which this one stops.
    pub(crate) fn purge(&self, zone: &Zone, allowance: &mut Allowance) -> usize {
        let unpurged = self.hints.set(UNPURGED);
        let begun = self.purge_from.load(atomic::Ordering::Relaxed);
        let (mut from, mut is_second_half) = (begun, begun == 0);
        let mut gone = 0;
        while !allowance.is_spent() {
            match unpurged.first(from).filter(|&unit| !is_second_half || begun == 0 || unit < begun) {
                Some(unit) => {
                    // The hint is cleared before the visit, so that a block that is freed during the visit sets the hint again.
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
        let slab = slab_at(zone, unit);
        // Half a page: the last page of a slab may contain less than a page of blocks.
        let min_bytes = zone.page_bytes() / 2;
        let is_resident = zone.slab_pages(slab, class.slab_bytes()) != 0;
        if !is_resident || (class.block_bytes() < min_bytes && free_bytes < min_bytes) {
            return 0;
        }
        // This thread owns the free blocks during the purge, so no other thread counts their pages as resident meanwhile.
        let mut free = [0; MAX_WORDS];
        for (word, free) in free[..class.words()].iter_mut().enumerate() {
            *free = self.free_word(unit, word).swap(0, Ordering::SeqCst);
        }
        let mut gone = 0;
        if free.iter().any(|&free| free != 0) && self.class(unit) == Some(class) {
            let in_use = (0..class.words())
                .flat_map(|word| each_bit(class.full_word(word) & !free[word]).map(move |bit| word * WORD_BITS + bit));
            let needed = in_use.fold(0, |needed, block| needed | pages_of(zone, class, block));
            // SAFETY: every block in these pages is free and owned by this thread. Any owner of a free block may purge the pages after the
            // slab's last block.
            gone = unsafe { zone.purge_slab(slab, zone.slab_pages(slab, class.slab_bytes()) & !needed) };
        }
        // The blocks are also freed if the slab now has another class and this thread took its blocks by mistake.
        for (word, &mask) in free[..class.words()].iter().enumerate().filter(|&(_, &mask)| mask != 0) {
            self.set_free_or_retire(zone, Blocks { unit, word, mask });
        }
        gone
    }
}

/// Aborts the process if blocks that are about to be freed are already free. If a C program frees a block twice, this is the last check
/// that can detect it. A Rust program frees a block twice only if its unsafe code is wrong. So builds for Rust check this only with debug
/// assertions.
#[inline(always)]
fn check_freed_once(free_before: u64, class: Class, address: impl FnOnce() -> usize) {
    #[cfg(feature = "c-api")]
    if free_before != 0 {
        os::abort(format_args!("free({:#x}): the block of {} bytes was freed twice", address(), class.block_bytes()));
    }
    #[cfg(not(feature = "c-api"))]
    debug_assert_eq!(free_before, 0, "a block of {} bytes at {:#x} was freed twice", class.block_bytes(), address());
}

/// Returns the bits of a word whose blocks fill whole cache lines, so the thread that takes them shares no line. Returns all bits if there
/// are no such blocks.
fn by_lines(class: Class, bits: u64) -> u64 {
    let (blocks, mut firsts) = (class.blocks_by_lines(), bits);
    // `blocks` is a power of two. Each step keeps the bits that begin a row of set bits twice as long as in the previous step.
    for shift in (0..blocks.trailing_zeros()).map(|step| 1 << step) {
        firsts &= firsts >> shift;
    }
    firsts &= u64::MAX / low_bits(blocks);
    if firsts == 0 { bits } else { firsts * low_bits(blocks) }
}

/// Returns the lowest `n` set bits.
fn lowest(bits: u64, n: usize) -> u64 {
    let mut left = bits;
    for _ in 0..n.min(WORD_BITS) {
        left &= left.wrapping_sub(1);
    }
    bits & !left
}

/// Returns the address of the slab that begins at a unit.
fn slab_at(zone: &Zone, unit: usize) -> NonNull<u8> {
    // SAFETY: the unit is in the zone whose slabs the table describes.
    unsafe { zone.base().add(unit * UNIT_BYTES) }
}

/// Returns the pages of the slab that a block touches, as a mask.
fn pages_of(zone: &Zone, class: Class, block: usize) -> u64 {
    let page = zone.page_bytes();
    let (first, last) = (block * class.block_bytes() / page, ((block + 1) * class.block_bytes() - 1) / page);
    low_bits(last + 1) & !low_bits(first)
}

/// Whether a slab of this class may begin at a unit.
fn begins_slab(unit: usize, class: Class) -> bool {
    unit * UNIT_BYTES % class.slab_bytes() == 0
}
