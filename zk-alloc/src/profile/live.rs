//! The sampled allocations that are alive, by address.
//!
//! Most frees are of memory that was not sampled. A small table of counters, indexed by a hash of the address, filters out most of them.
//! The allocations are in a hash table of buckets. Each slot is claimed and released with one compare-and-swap, and nobody waits.
#![allow(unsafe_code, reason = "promises that zeroes are a table")]

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use super::sampler::Noted;
use super::sites::Index;
use crate::os::{AllZero, MappedOnce};

/// Addresses in a bucket, which is a cache line.
const WAYS: usize = 8;
const BUCKETS: usize = 1 << 14;
/// Buckets that are tried for an address.
const TRIES: usize = 4;
const COUNTERS: usize = 1 << 15;
/// A counter that has reached this value keeps it.
const FULL: u8 = u8::MAX;
/// Stands in place of an address while a thread writes the slot. No allocation has this address.
const CLAIMED: usize = 1;

pub(super) static TABLE: MappedOnce<Table> = MappedOnce::new();

pub(super) struct Table {
    may_hold: [AtomicU8; COUNTERS],
    addresses: [Bucket; BUCKETS],
    samples: [[Sample; WAYS]; BUCKETS],
    /// Whether an address was moved on from a bucket because it was full.
    is_spilled: [AtomicBool; BUCKETS],
}

// SAFETY: arrays of atomics, for which zero is a value.
unsafe impl AllZero for Table {}

/// The addresses of a bucket; 0 for a free slot.
#[repr(align(64))]
struct Bucket([AtomicUsize; WAYS]);

struct Sample {
    bytes: AtomicU64,
    /// The count in the upper half, and the site in the lower.
    count_and_site: AtomicU64,
}

impl Table {
    /// Neighbouring addresses have neighbouring counters, so that a program that works in one place uses few cache lines of counters.
    fn counter(&self, at: usize) -> &AtomicU8 {
        &self.may_hold[((at >> 4) ^ (at >> 19)) % COUNTERS]
    }
}

/// The buckets for an address, the usual one first.
fn buckets(at: usize) -> impl Iterator<Item = usize> {
    let hash = (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BUCKETS.trailing_zeros());
    (0..TRIES).map(move |tried| (hash as usize + tried) % BUCKETS)
}

/// `false` if no sample of this address is alive.
#[inline(always)]
pub(crate) fn may_hold(at: usize) -> bool {
    TABLE.get().is_some_and(|table| table.counter(at).load(Ordering::Relaxed) != 0)
}

/// Notes a sampled allocation, before the program has its address. `false` if there is no room.
pub(super) fn insert(at: usize, site: Index, noted: Noted) -> bool {
    let Some(table) = TABLE.get() else { return false };
    for bucket in buckets(at) {
        for (slot, sample) in table.addresses[bucket].0.iter().zip(&table.samples[bucket]) {
            let is_free = slot.load(Ordering::Relaxed) == 0;
            if is_free && slot.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                sample.bytes.store(noted.bytes, Ordering::Relaxed);
                sample.count_and_site.store(noted.count << 32 | u64::from(site), Ordering::Relaxed);
                let count = |count: u8| count.checked_add(1);
                let _ = table.counter(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
                slot.store(at, Ordering::Release);
                return true;
            }
        }
        table.is_spilled[bucket].store(true, Ordering::Relaxed);
    }
    false
}

/// Takes out a sampled allocation, before its memory is free.
pub(super) fn remove(at: usize) -> Option<(Index, Noted)> {
    let table = TABLE.get()?;
    for bucket in buckets(at) {
        for (slot, sample) in table.addresses[bucket].0.iter().zip(&table.samples[bucket]) {
            if slot.load(Ordering::Acquire) != at {
                continue;
            }
            let bytes = sample.bytes.load(Ordering::Relaxed);
            let count_and_site = sample.count_and_site.load(Ordering::Relaxed);
            // Fails if the sampling was started again in between.
            slot.compare_exchange(at, 0, Ordering::Release, Ordering::Relaxed).ok()?;
            let count = |count: u8| if count == FULL { None } else { count.checked_sub(1) };
            let _ = table.counter(at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
            return Some((count_and_site as Index, Noted { bytes, count: count_and_site >> 32 }));
        }
        if !table.is_spilled[bucket].load(Ordering::Relaxed) {
            return None;
        }
    }
    None
}

/// Forgets all allocations.
pub(super) fn clear() {
    let Some(table) = TABLE.get() else { return };
    // Each value is read first, so that pages that were never written take no memory.
    for counter in table.may_hold.iter().filter(|counter| counter.load(Ordering::Relaxed) != 0) {
        counter.store(0, Ordering::Relaxed);
    }
    let slots = table.addresses.iter().flat_map(|bucket| &bucket.0);
    for slot in slots.filter(|slot| slot.load(Ordering::Relaxed) != 0) {
        slot.store(0, Ordering::Relaxed);
    }
    for spilled in table.is_spilled.iter().filter(|spilled| spilled.load(Ordering::Relaxed)) {
        spilled.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTED: Noted = Noted { bytes: 7 << 32, count: 1 << 30 };

    /// An address that got lost in a full bucket would stay alive forever. An address that came out twice would be counted as freed twice.
    #[test]
    fn every_address_is_removed_once_even_from_full_buckets() {
        let _turn = crate::profile::tests::turn();
        TABLE.map().unwrap();
        // Addresses at equal distances would fill the buckets evenly.
        let addresses = || (0..BUCKETS * WAYS * 3 / 4).map(|i| (1 << 40) + i * (i + 1) / 2 * 16);
        assert!(!addresses().any(may_hold));
        let noted: Vec<_> = addresses().map(|at| insert(at, at as Index, NOTED)).collect();
        assert!(noted.iter().filter(|noted| **noted).count() > noted.len() * 95 / 100);
        let is_spilled = &TABLE.get().unwrap().is_spilled;
        assert!(is_spilled.iter().any(|spilled| spilled.load(Ordering::Relaxed)), "some buckets were full");
        for (at, noted) in addresses().zip(noted) {
            assert!(may_hold(at) || !noted);
            assert_eq!(remove(at), noted.then_some((at as Index, NOTED)));
            assert_eq!(remove(at), None);
        }
        clear();
        assert!(!addresses().any(may_hold));
    }
}
