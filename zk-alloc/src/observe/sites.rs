//! The call sites, and the estimates for each, now and at the peak of the live bytes.
//!
//! The sites are in a hash table that only grows. A thread claims a slot with one compare-and-swap, and no other thread waits for it. If
//! the thread stops halfway, as it may in a forked child, the site stays without addresses.
//!
//! Live bytes fall only when something is freed. So a new *peak* is recorded just before a free, if the live bytes exceed those of the
//! previous peak by 1/256. Peaks are numbered. Each site saves its live bytes just before they first change after the latest peak; until
//! then, their current number is also that at the peak.
#![allow(unsafe_code, reason = "promises that zeroes are a table")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::sampler::{COUNT_PARTS, Noted};
use crate::frames;
use crate::os::{AllZero, MappedOnce};

/// The maximum number of sites. Samples of all further sites are counted under a site without addresses.
const SITES: usize = 1 << 14;
/// The number of slots that are tried for a site.
const TRIES: usize = 32;

pub(super) static TABLE: MappedOnce<Table> = MappedOnce::new();
/// The estimated live bytes of all sites together.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// The live bytes at the latest peak, and the number of that peak ([`Tagged`]).
static PEAK: AtomicU64 = AtomicU64::new(0);

/// A new peak is recorded if the live bytes exceed those of the previous peak by one part in this many.
const STEP: u64 = 256;

pub(super) struct Table {
    /// The hash of the site in each slot; 0 for a free slot. Sites whose 64-bit hashes are equal count as one site.
    hashes: [AtomicU64; SITES],
    entries: [Entry; SITES],
}

// SAFETY: the table consists of arrays of atomics, for which zero is a valid value.
unsafe impl AllZero for Table {}

/// The allocator that served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The arena.
    Arena,
    /// The backing allocator: the request came outside of phases, was below the threshold, or found no memory in the arena.
    Backing,
}

/// An estimated number of allocations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Amount {
    /// The number of allocations.
    pub allocations: u64,
    /// Their bytes. Those of the arena include its rounding, as in [`Stats::live_bytes`](crate::Stats::live_bytes).
    pub bytes: u64,
}

/// A call site: the call chain of sampled requests, and estimates of all such requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Site {
    /// The return addresses of the calls, the innermost first, at most 64. The first few are in the allocator. Empty for requests on the
    /// stack of a signal handler, and for call sites that did not fit into the tables.
    pub addresses: Vec<usize>,
    /// The allocator that served the requests.
    pub source: Source,
    /// The amount allocated since the start, or the last [`mark`](crate::profile::mark).
    pub allocated: Amount,
    /// The amount that is alive now.
    pub live: Amount,
    /// The amount that was alive when the live bytes of all sites were at their peak since the start, or the last
    /// [`mark`](crate::profile::mark).
    pub peak: Amount,
    /// Bytes that were not resident when the arena handed them out, since the start or the last [`mark`](crate::profile::mark). Their pages
    /// cost page faults.
    pub fresh_bytes: u64,
}

impl Site {
    /// Returns whether the site has no samples.
    fn is_empty(&self) -> bool {
        let bytes = [self.allocated, self.live, self.peak].map(|amount| amount.bytes);
        bytes == [0; 3] && self.fresh_bytes == 0
    }
}

/// The counters and the addresses of a site. The counters come first, so that reading them touches one cache line.
#[repr(align(64))]
struct Entry {
    allocated: Counted,
    /// May be negative if sampling was restarted between an allocation and its free.
    live: Counted,
    /// The site's live bytes at a peak, and the number of that peak. They share one word, so that no thread sees one without the other.
    peak: AtomicU64,
    peak_count: AtomicU64,
    fresh_bytes: AtomicU64,
    /// The number of addresses and the source, as [`describe`](Self::describe) packs them; 0 until the addresses are written.
    state: AtomicU32,
    addresses: [AtomicUsize; frames::MAX_FRAMES],
}

/// An [`Amount`], with the count in parts of a request ([`COUNT_PARTS`]). Wraps around below 0.
struct Counted {
    bytes: AtomicU64,
    count: AtomicU64,
}

/// A number of bytes in the lower 48 bits, and the low bits of a peak's number above them.
#[derive(Clone, Copy)]
struct Tagged(u64);

impl Tagged {
    const BYTES_BITS: u32 = 48;

    fn new(number: u64, bytes: u64) -> Self {
        Self(number << Self::BYTES_BITS | bytes)
    }

    fn bytes(self) -> u64 {
        self.0 & ((1 << Self::BYTES_BITS) - 1)
    }

    fn number(self) -> u64 {
        self.0 >> Self::BYTES_BITS
    }
}

/// The index of a site in the table.
pub(crate) type Index = u32;

/// Finds the site with these addresses and this source, or claims a slot for it.
pub(super) fn find(addresses: &[usize], source: Source) -> Index {
    claim(addresses, source).or_else(|| claim(&[], source)).unwrap_or(0) as Index
}

fn claim(addresses: &[usize], source: Source) -> Option<usize> {
    let table = TABLE.get()?;
    let hash = hash(addresses, source);
    let slots = (0..TRIES).map(|tried| (hash as usize).wrapping_add(tried) % SITES);
    for index in slots {
        let found = match table.hashes[index].load(Ordering::Relaxed) {
            0 => table.hashes[index].compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed),
            other => Err(other),
        };
        match found {
            Ok(_) => {
                table.entries[index].describe(addresses, source);
                return Some(index);
            }
            Err(other) if other == hash => return Some(index),
            Err(_) => {}
        }
    }
    None
}

fn hash(addresses: &[usize], source: Source) -> u64 {
    let mut hasher = DefaultHasher::new();
    (addresses, source).hash(&mut hasher);
    // The highest bit is set, because 0 means a free slot.
    hasher.finish() | 1 << 63
}

/// Returns the entry of a site; `None` before the table is mapped.
fn at(index: Index) -> Option<&'static Entry> {
    TABLE.get().map(|table| &table.entries[index as usize % SITES])
}

/// Returns all sites, each with its hash.
fn all() -> impl Iterator<Item = (&'static AtomicU64, &'static Entry)> {
    let slots = TABLE.get().into_iter().flat_map(|table| table.hashes.iter().zip(&table.entries));
    slots.filter(|(hash, _)| hash.load(Ordering::Relaxed) != 0)
}

/// Removes all sites.
pub(super) fn clear() {
    for (hash, entry) in all() {
        entry.clear();
        hash.store(0, Ordering::Relaxed);
    }
    // Reserve slots for the two sites without addresses.
    for source in [Source::Arena, Source::Backing] {
        find(&[], source);
    }
    LIVE_BYTES.store(0, Ordering::Relaxed);
    begin_peak(|_, _| true);
}

/// Counts a sampled allocation.
pub(super) fn born(site: Index, noted: Noted) {
    let Some(site) = at(site) else { return };
    site.note_peak();
    site.allocated.add(noted);
    site.live.add(noted);
    LIVE_BYTES.fetch_add(noted.bytes as i64, Ordering::Relaxed);
}

/// Counts the free of a sampled allocation.
pub(super) fn died(site: Index, noted: Noted) {
    let Some(site) = at(site) else { return };
    // The live bytes are about to fall, perhaps from a new peak.
    begin_peak(|live, peak| live > peak + peak / STEP);
    site.note_peak();
    site.live.subtract(noted);
    LIVE_BYTES.fetch_sub(noted.bytes as i64, Ordering::Relaxed);
}

/// Counts fresh bytes.
pub(super) fn fresh(site: Index, bytes: u64) {
    if let Some(site) = at(site) {
        site.fresh_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Returns the current estimates.
pub(crate) fn read() -> Vec<Site> {
    begin_peak(|live, peak| live > peak);
    all().map(|(_, site)| site.read()).filter(|site| !site.is_empty()).collect()
}

/// Returns the estimates for one site.
pub(crate) fn read_one(site: Index) -> Option<Site> {
    at(site).map(Entry::read)
}

/// Resets the estimates as [`mark`](crate::profile::mark) documents, and records the current live bytes as a new peak.
pub(crate) fn mark() {
    for (_, site) in all() {
        site.allocated.set(Noted::default());
        site.fresh_bytes.store(0, Ordering::Relaxed);
    }
    begin_peak(|_, _| true);
}

/// Records the current live bytes as a new peak if `is_due` returns `true` for them and those of the previous peak.
fn begin_peak(is_due: impl Fn(u64, u64) -> bool) {
    let next = |last| {
        let (last, live) = (Tagged(last), LIVE_BYTES.load(Ordering::Relaxed).max(0) as u64);
        is_due(live, last.bytes()).then(|| Tagged::new(last.number() + 1, live).0)
    };
    _ = PEAK.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
}

impl Counted {
    fn add(&self, noted: Noted) {
        self.bytes.fetch_add(noted.bytes, Ordering::Relaxed);
        self.count.fetch_add(noted.count, Ordering::Relaxed);
    }

    fn subtract(&self, noted: Noted) {
        self.bytes.fetch_sub(noted.bytes, Ordering::Relaxed);
        self.count.fetch_sub(noted.count, Ordering::Relaxed);
    }

    fn set(&self, noted: Noted) {
        self.bytes.store(noted.bytes, Ordering::Relaxed);
        self.count.store(noted.count, Ordering::Relaxed);
    }

    /// Returns the sums. A negative sum counts as 0.
    fn noted(&self) -> Noted {
        let sum = |sum: &AtomicU64| (sum.load(Ordering::Relaxed) as i64).max(0) as u64;
        Noted { bytes: sum(&self.bytes), count: sum(&self.count) }
    }
}

fn amount(noted: Noted) -> Amount {
    Amount { allocations: (noted.count + COUNT_PARTS / 2) / COUNT_PARTS, bytes: noted.bytes }
}

impl Entry {
    fn describe(&self, addresses: &[usize], source: Source) {
        for (place, &address) in self.addresses.iter().zip(addresses) {
            place.store(address, Ordering::Relaxed);
        }
        let state = (addresses.len() as u32 + 1) * 2 + u32::from(source == Source::Backing);
        // Pairs with the Acquire of `read`.
        self.state.store(state, Ordering::Release);
    }

    fn clear(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.allocated.set(Noted::default());
        self.peak.store(0, Ordering::Relaxed);
        self.peak_count.store(0, Ordering::Relaxed);
        self.live.set(Noted::default());
        self.fresh_bytes.store(0, Ordering::Relaxed);
    }

    /// Saves the site's live bytes as those at the latest peak, unless that was done already. Called before the live bytes change.
    fn note_peak(&self) {
        // Read the site's record before the number of the latest peak, so that the record is not ahead of it. Also read it before the live
        // bytes: if another thread records the peak and then changes them, the exchange below fails, and this thread records nothing.
        let noted = self.peak.load(Ordering::Acquire);
        let number = Tagged(PEAK.load(Ordering::Acquire)).number();
        let live = self.live.noted();
        let next = Tagged::new(number, live.bytes).0;
        let is_due = Tagged(noted).number() != number;
        if is_due && self.peak.compare_exchange(noted, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.peak_count.store(live.count, Ordering::Relaxed);
        }
    }

    /// Returns the estimates so far.
    fn read(&self) -> Site {
        self.note_peak();
        // Pairs with the Release of `describe`.
        let state = self.state.load(Ordering::Acquire);
        let addresses = &self.addresses[..(state as usize / 2).saturating_sub(1)];
        Site {
            addresses: addresses.iter().map(|address| address.load(Ordering::Relaxed)).collect(),
            source: if state % 2 == 1 { Source::Backing } else { Source::Arena },
            allocated: amount(self.allocated.noted()),
            live: amount(self.live.noted()),
            peak: amount(Noted {
                bytes: Tagged(self.peak.load(Ordering::Relaxed)).bytes(),
                count: self.peak_count.load(Ordering::Relaxed),
            }),
            fresh_bytes: self.fresh_bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The totals stay correct in a program with more call sites than the table holds.
    #[test]
    fn sites_that_do_not_fit_count_for_one_without_addresses() {
        let _turn = crate::observe::tests::turn();
        TABLE.map().unwrap();
        clear();
        let without = find(&[], Source::Arena);
        let found: Vec<_> = (0..SITES * 2).map(|i| find(&[0x1000 + i * 8, 0x2000], Source::Arena)).collect();
        assert!(!found[..SITES / 4].contains(&without), "there is room");
        assert!(found.iter().filter(|index| **index == without).count() >= SITES);
        assert_eq!(found[17], find(&[0x1000 + 17 * 8, 0x2000], Source::Arena));
        assert_ne!(found[17], find(&[0x1000 + 17 * 8, 0x2000], Source::Backing));
        assert_eq!(read_one(found[17]).unwrap().addresses, [0x1000 + 17 * 8, 0x2000]);
        assert_eq!(read_one(without).unwrap().addresses, [0; 0]);
        clear();
        assert_eq!(all().count(), 2);
    }
}
