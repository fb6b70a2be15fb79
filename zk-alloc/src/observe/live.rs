//! The table of recorded allocations that are still live, by address.
//!
//! Most memory that is freed was not sampled. A small table of counters, indexed by a hash of the address, shows this for most frees
//! without a search. The recorded allocations are in a hash table. Each slot is claimed and released with one compare-and-swap, and no
//! thread waits.
#![allow(unsafe_code, reason = "promises that zeroes are a table")]

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::sampler::Noted;
use super::sites::Index;
use crate::os::{AllZero, MappedOnce};

/// The number of slots. A trace of escapes records every live allocation.
const SLOTS: usize = 1 << 20;
/// The number of slots at the start of the table that are tried first. They suffice for most profiles, so samples touch a small part of the table.
const FIRST_SLOTS: usize = 1 << 17;
/// The number of slots that are tried for an address in each of the two parts.
const TRIES: usize = 32;
/// The number of slots in a cache line. The slots that are tried for an address begin on a cache-line boundary.
const LINE: usize = 8;
const COUNTERS: usize = 1 << 15;
/// The largest value of a counter. A counter that reaches it never changes again.
const FULL: u8 = u8::MAX;
/// The placeholder in a slot while a thread fills it. No allocation has this address.
const CLAIMED: usize = 1;

pub(super) static TABLE: MappedOnce<Table> = MappedOnce::new();

pub(super) struct Table {
    may_hold: [AtomicU8; COUNTERS],
    /// The address in each slot; 0 for a free slot.
    addresses: [AtomicUsize; SLOTS],
    samples: [Sample; SLOTS],
}

// SAFETY: the table consists of arrays of atomics, for which zero is a valid value.
unsafe impl AllZero for Table {}

struct Sample {
    bytes: AtomicU64,
    /// The count in the upper half, and the index of the site in the lower half.
    count_and_site: AtomicU64,
    /// The [window](crate::escape) in which the allocation was made.
    window: AtomicU64,
}

impl Table {
    /// Returns the counter for an address. Neighbouring addresses have neighbouring counters, so that a program that works in a small range
    /// touches few cache lines of counters.
    fn counter(&self, at: usize) -> &AtomicU8 {
        &self.may_hold[((at >> 4) ^ (at >> 19)) % COUNTERS]
    }

    /// Returns the slots for an address, in the order in which they are tried: first those at the start of the table.
    fn slots(&self, at: usize) -> impl Iterator<Item = (&AtomicUsize, &Sample)> {
        let hash = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let tried = [0..FIRST_SLOTS, FIRST_SLOTS..SLOTS].into_iter().flat_map(move |part| {
            // The upper half of the product is uniformly distributed below the number of lines.
            let line = ((u128::from(hash) * (part.len() / LINE) as u128) >> u64::BITS) as usize;
            (0..TRIES).map(move |tried| part.start + (line * LINE + tried) % part.len())
        });
        tried.map(|slot| (&self.addresses[slot], &self.samples[slot]))
    }
}

/// Returns whether a live sample may have this address. `false` is certain, but `true` may be a false positive.
#[inline(always)]
pub(super) fn may_hold(at: usize) -> bool {
    TABLE.get().is_some_and(|table| table.counter(at).load(Ordering::Relaxed) != 0)
}

/// Records a sampled allocation, before the program gets its address. Returns `false` if there is no free slot.
pub(super) fn insert(at: usize, site: Index, noted: Noted, window: u64) -> bool {
    let Some(table) = TABLE.get() else { return false };
    let is_claimed = |slot: &AtomicUsize| {
        slot.load(Ordering::Relaxed) == 0
            && slot.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let Some((slot, sample)) = table.slots(at).find(|(slot, _)| is_claimed(slot)) else { return false };
    sample.bytes.store(noted.bytes, Ordering::Relaxed);
    sample.count_and_site.store(noted.count << 32 | u64::from(site), Ordering::Relaxed);
    sample.window.store(window, Ordering::Relaxed);
    let count = |count: u8| count.checked_add(1);
    let _ = table.counter(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
    slot.store(at, Ordering::Release);
    true
}

/// Removes a sampled allocation before its memory is freed, and returns its site and what it added to the estimates.
pub(super) fn remove(at: usize) -> Option<(Index, Noted)> {
    let table = TABLE.get()?;
    let (slot, sample) = table.slots(at).find(|(slot, _)| slot.load(Ordering::Acquire) == at)?;
    let bytes = sample.bytes.load(Ordering::Relaxed);
    let count_and_site = sample.count_and_site.load(Ordering::Relaxed);
    // Fails if sampling was restarted in between.
    slot.compare_exchange(at, 0, Ordering::Release, Ordering::Relaxed).ok()?;
    let count = |count: u8| if count == FULL { None } else { count.checked_sub(1) };
    let _ = table.counter(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
    Some((count_and_site as Index, Noted { bytes, count: count_and_site >> 32 }))
}

/// Returns the site and the bytes of each allocation of a window. Other threads may add and remove allocations during the walk.
pub(crate) fn of_window(window: u64) -> impl Iterator<Item = (Index, u64)> {
    let slots = TABLE.get().into_iter().flat_map(|table| table.addresses.iter().zip(&table.samples));
    let alive = slots.filter(|(slot, _)| slot.load(Ordering::Acquire) > CLAIMED).map(|(_, sample)| sample);
    let of_window = alive.filter(move |sample| sample.window.load(Ordering::Relaxed) == window);
    of_window
        .map(|sample| (sample.count_and_site.load(Ordering::Relaxed) as Index, sample.bytes.load(Ordering::Relaxed)))
}

/// Forgets all allocations.
pub(super) fn clear() {
    let Some(table) = TABLE.get() else { return };
    // Only values other than 0 are overwritten, so that pages that were never written still take no memory.
    for counter in table.may_hold.iter().filter(|counter| counter.load(Ordering::Relaxed) != 0) {
        counter.store(0, Ordering::Relaxed);
    }
    for slot in table.addresses.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0) {
        slot.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTED: Noted = Noted { bytes: 7 << 32, count: 1 << 30 };

    /// A lost allocation would count as live forever. An allocation removed twice would count as freed twice.
    #[test]
    fn every_address_is_removed_once_even_from_a_full_table() {
        let _turn = crate::observe::tests::turn();
        TABLE.map().unwrap();
        // The distances differ, because addresses at equal distances would fill the table evenly.
        let addresses = || (0..SLOTS * 3 / 4).map(|i| (1 << 40) + i * (i + 1) / 2 * 16);
        assert!(!addresses().any(may_hold));
        let noted: Vec<_> = addresses().map(|at| insert(at, at as Index, NOTED, 0)).collect();
        assert!(noted.iter().filter(|noted| **noted).count() > noted.len() * 95 / 100);
        for (at, noted) in addresses().zip(noted) {
            assert!(may_hold(at) || !noted);
            assert_eq!(remove(at), noted.then_some((at as Index, NOTED)));
            assert_eq!(remove(at), None);
        }
        clear();
        assert!(!addresses().any(may_hold));
    }
}
