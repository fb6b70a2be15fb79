//! The call sites, and the estimates for each, now and at the peak of the live bytes.
//!
//! The sites are in a hash table that only grows. A thread claims a slot with one compare-and-swap, and nobody waits for it. A thread that
//! stops in the middle, as in a forked child, leaves a site without addresses.
//!
//! A *note* of the peak records the live bytes of all sites. Live bytes rise until something is freed. So the sites are noted just before a
//! free, if the live bytes are above the last noted peak by 1/256. Other threads allocate and free during a note, and note a site themselves
//! before they change it. A thread that sees a new peak during a note completes that note, and begins another.
#![allow(unsafe_code, reason = "promises that zeroes are a table")]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::sampler::{COUNT_PARTS, Noted};
use crate::frames;
use crate::os::{self, AllZero, MappedOnce};

/// The number of sites. Samples of further sites count for a site without addresses.
const SITES: usize = 1 << 14;
/// Slots that are tried for a site.
const TRIES: usize = 32;

pub(super) static TABLE: MappedOnce<Table> = MappedOnce::new();
/// The upper half is the number of the last note of the peak. The lower half is the process that began it ([`noting`]), or 0 when the note is
/// complete. A forked child may find a note of its parent.
static NOTE: AtomicU64 = AtomicU64::new(0);
/// The estimated live bytes of all sites.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// The live bytes when the sites were last noted, with the number of that note ([`Tagged`]).
static NOTED: AtomicU64 = AtomicU64::new(0);

/// The sites are noted if the live bytes exceed the noted ones by one part in this many.
const STEP: u64 = 256;
/// Stands for all entries before there is a table.
// SAFETY: atomics, for which zero is a value.
static NO_ENTRY: Entry = unsafe { MaybeUninit::zeroed().assume_init() };

pub(super) struct Table {
    /// The hash of the site in each slot; 0 for none. Sites with equal hashes of 64 bits count as one site.
    hashes: [AtomicU64; SITES],
    entries: [Entry; SITES],
}

// SAFETY: arrays of atomics, for which zero is a value.
unsafe impl AllZero for Table {}

/// The allocator that served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The arena.
    Arena,
    /// The backing allocator: outside of phases, below the threshold, or because the arena had no memory.
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

/// A place that allocates: the calls that led to sampled requests, and estimates of all such requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Site {
    /// The addresses to which the calls return, the innermost first, at most 64. The first few lie in the allocator. It is empty for
    /// requests on the stack of a signal handler, and for call sites that the tables have no room for.
    pub addresses: Vec<usize>,
    /// The allocator that served the requests.
    pub source: Source,
    /// Allocated since the start, or the last [`mark`](super::mark).
    pub allocated: Amount,
    /// Alive now.
    pub live: Amount,
    /// Alive when the live bytes of all sites were at their peak since the start, or the last [`mark`](super::mark).
    pub peak: Amount,
    /// Bytes that were not resident when the arena handed them out, since the start or the last [`mark`](super::mark). Their pages are
    /// faulted in.
    pub fresh_bytes: u64,
}

impl Site {
    /// Whether no sample is counted here.
    fn is_empty(&self) -> bool {
        let bytes = [self.allocated, self.live, self.peak].map(|amount| amount.bytes);
        bytes == [0; 3] && self.fresh_bytes == 0
    }
}

/// The account of a site. The counters come first, so that reading them touches one cache line.
#[repr(align(64))]
struct Entry {
    allocated: Counted,
    /// Below 0 if sampling was started again between an allocation and its free.
    live: Counted,
    /// The bytes at the peak, with the number of the last note that has this site: one word, so that no thread sees one without the other.
    peak: AtomicU64,
    peak_count: AtomicU64,
    fresh_bytes: AtomicU64,
    /// The number of addresses and the source, as [`state`] packs them; 0 until the addresses are written.
    state: AtomicU32,
    addresses: [AtomicUsize; frames::MAX_FRAMES],
}

/// An [`Amount`], with the count in parts. Wraps around below 0.
struct Counted {
    bytes: AtomicU64,
    count: AtomicU64,
}

/// Bytes in the lower 48 bits, and above them the lower bits of the number of a note.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tagged(u64);

impl Tagged {
    const BYTES_BITS: u32 = 48;

    fn new(number: u32, bytes: u64) -> Self {
        Self(u64::from(number) << Self::BYTES_BITS | bytes)
    }

    fn bytes(self) -> u64 {
        self.0 & ((1 << Self::BYTES_BITS) - 1)
    }

    /// Whether this belongs to an earlier note than `number`. The two notes must be less than 2^15 apart.
    fn is_before(self, number: u32) -> bool {
        let ahead = (number as u16).wrapping_sub((self.0 >> Self::BYTES_BITS) as u16);
        (1..1 << 15).contains(&ahead)
    }
}

/// The halves of [`NOTE`].
fn split(note: u64) -> (u32, u32) {
    ((note >> 32) as u32, note as u32)
}

/// The number of the last note that was begun.
fn last_note() -> u32 {
    split(NOTE.load(Ordering::Relaxed)).0
}

fn state(len: usize, source: Source) -> u32 {
    (len as u32 + 1) * 2 + u32::from(source == Source::Backing)
}

/// The index of a site in the table.
pub(super) type Index = u32;

/// The site of these calls and this source.
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
                table.entries[index].describe(addresses, source, last_note());
                return Some(index);
            }
            Err(other) if other == hash => return Some(index),
            Err(_) => {}
        }
    }
    None
}

fn hash(addresses: &[usize], source: Source) -> u64 {
    let add = |hash: u64, &address: &usize| (hash.rotate_left(5) ^ address as u64).wrapping_mul(0x517C_C1B7_2722_0A95);
    let hash = addresses.iter().fold(source as u64 + 1, add);
    // The lower bits pick the slot, and the upper ones are mixed best.
    (hash ^ (hash >> 32)) | 1 << 63
}

/// The entry of a site.
fn at(index: Index) -> &'static Entry {
    TABLE.get().map_or(&NO_ENTRY, |table| &table.entries[index as usize % SITES])
}

/// All sites, each with its hash.
fn all() -> impl Iterator<Item = (&'static AtomicU64, &'static Entry)> {
    let slots = TABLE.get().into_iter().flat_map(|table| table.hashes.iter().zip(&table.entries));
    slots.filter(|(hash, _)| hash.load(Ordering::Relaxed) != 0)
}

/// Forgets all sites.
pub(super) fn clear() {
    for (hash, entry) in all() {
        entry.clear();
        hash.store(0, Ordering::Relaxed);
    }
    // The sites without addresses always have a slot.
    for source in [Source::Arena, Source::Backing] {
        find(&[], source);
    }
    LIVE_BYTES.store(0, Ordering::Relaxed);
    NOTED.store(Tagged::new(last_note(), 0).0, Ordering::Relaxed);
}

/// Counts an allocation that stays alive.
pub(super) fn born(site: Index, noted: Noted) {
    let site = at(site);
    about_to_change(site);
    site.allocated.add(noted);
    site.live.add(noted);
    LIVE_BYTES.fetch_add(noted.bytes as i64, Ordering::Relaxed);
}

/// Counts a free.
pub(super) fn died(site: Index, noted: Noted) {
    // The live bytes are about to fall, perhaps from a new peak.
    if is_peak(STEP) {
        note(STEP);
    }
    let site = at(site);
    about_to_change(site);
    site.live.subtract(noted);
    LIVE_BYTES.fetch_sub(noted.bytes as i64, Ordering::Relaxed);
}

/// Counts fresh bytes.
pub(super) fn fresh(site: Index, bytes: u64) {
    at(site).fresh_bytes.fetch_add(bytes, Ordering::Relaxed);
}

/// The estimates of this moment.
pub(super) fn read() -> Vec<Site> {
    // Notes the sites, if the live bytes are above the noted peak.
    note(u64::MAX);
    all().map(|(_, site)| site.read()).filter(|site| !site.is_empty()).collect()
}

/// See [`mark`](super::mark): the peak is what is alive now.
pub(super) fn mark() {
    for (_, site) in all() {
        site.allocated.set(Noted::default());
        site.fresh_bytes.store(0, Ordering::Relaxed);
    }
    for _ in 0..MAX_NOTES {
        let note = NOTE.load(Ordering::Acquire);
        let (number, by) = split(note);
        if by == noting() {
            end_note(number);
        } else if let Some(number) = begin_note(note) {
            NOTED.store(Tagged::new(number, 0).0, Ordering::Relaxed);
            return end_note(number);
        }
    }
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

    /// The sums, or 0 for a sum below 0.
    fn noted(&self) -> Noted {
        let sum = |sum: &AtomicU64| (sum.load(Ordering::Relaxed) as i64).max(0) as u64;
        Noted { bytes: sum(&self.bytes), count: sum(&self.count) }
    }
}

fn amount(noted: Noted) -> Amount {
    Amount { allocations: (noted.count + COUNT_PARTS / 2) / COUNT_PARTS, bytes: noted.bytes }
}

impl Entry {
    fn describe(&self, addresses: &[usize], source: Source, number: u32) {
        for (place, &address) in self.addresses.iter().zip(addresses) {
            place.store(address, Ordering::Relaxed);
        }
        self.peak.store(Tagged::new(number, 0).0, Ordering::Relaxed);
        // Pairs with the Acquire of `read`.
        self.state.store(state(addresses.len(), source), Ordering::Release);
    }

    fn clear(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.allocated.set(Noted::default());
        self.peak.store(0, Ordering::Relaxed);
        self.peak_count.store(0, Ordering::Relaxed);
        self.live.set(Noted::default());
        self.fresh_bytes.store(0, Ordering::Relaxed);
    }

    /// Notes the live bytes as those of the peak, unless a thread did so before for the note with this number. Returns them.
    fn note_peak(&self, number: u32) -> u64 {
        // Read before the live bytes. A thread that changes the site notes it first, or finds it noted. So the live bytes that are stored
        // below are from before the change.
        let peak = self.peak.load(Ordering::Acquire);
        let live = self.live.noted();
        let noted = Tagged::new(number, live.bytes).0;
        let is_due = Tagged(peak).is_before(number);
        if is_due && self.peak.compare_exchange(peak, noted, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.peak_count.store(live.count, Ordering::Relaxed);
            return live.bytes;
        }
        Tagged(self.peak.load(Ordering::Acquire)).bytes()
    }

    /// The estimates so far.
    fn read(&self) -> Site {
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

// Notes of the peak.

/// Called before a site changes. If a thread notes the sites now, the note gets the bytes from before the change.
fn about_to_change(site: &Entry) {
    let (number, by) = split(NOTE.load(Ordering::Acquire));
    if by == noting() {
        site.note_peak(number);
    }
}

/// The lower half of [`NOTE`] while a thread of this process notes the sites.
fn noting() -> u32 {
    (os::process_generation() as u32) << 1 | 1
}

fn join(number: u32, by: u32) -> u64 {
    u64::from(number) << 32 | u64::from(by)
}

/// A thread tries at most this many times to complete or begin a note: other threads may begin notes at the same time.
const MAX_NOTES: usize = 8;

/// Notes the sites, until the live bytes exceed the noted bytes by no more than one part in `step`. A note that is in progress was begun at a
/// lower peak, and its thread may be interrupted for long. So this thread completes it first.
#[cold]
fn note(step: u64) {
    for _ in 0..MAX_NOTES {
        // Read before the comparison: if another note begins or is completed after it, this thread begins none.
        let note = NOTE.load(Ordering::Acquire);
        let (number, by) = split(note);
        if by == noting() {
            end_note(number);
        } else if !is_peak(step) {
            return;
        } else if let Some(number) = begin_note(note) {
            end_note(number);
        }
    }
}

fn is_peak(step: u64) -> bool {
    let noted = Tagged(NOTED.load(Ordering::Relaxed)).bytes();
    LIVE_BYTES.load(Ordering::Relaxed) > (noted + noted / step) as i64
}

/// Begins a note: from now on, a thread that changes a site notes it first. Returns the number of this note, or `None` if `note` is no longer
/// the last one. A note that the parent process began has no thread here, so this one takes its place.
fn begin_note(note: u64) -> Option<u32> {
    let number = split(note).0.wrapping_add(1);
    let next = join(number, noting());
    NOTE.compare_exchange(note, next, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(number)
}

/// Completes the note with this number. Several threads may do so at once.
fn end_note(number: u32) {
    let bytes: u64 = all().map(|(_, site)| site.note_peak(number)).sum();
    // Raises the noted bytes, unless they are those of a later note: a thread that is late has a sum from before a mark.
    let raise = |noted| {
        let noted = Tagged(noted);
        (noted.is_before(number) || noted == Tagged::new(number, noted.bytes()))
            .then(|| Tagged::new(number, noted.bytes().max(bytes)).0)
    };
    _ = NOTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    let (in_progress, complete) = (join(number, noting()), join(number, 0));
    _ = NOTE.compare_exchange(in_progress, complete, Ordering::AcqRel, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{allocated, freed, live};

    /// The totals stay right in a program with more call sites than there is room for.
    #[test]
    fn sites_that_do_not_fit_count_for_one_without_addresses() {
        let _turn = crate::profile::tests::turn();
        TABLE.map().unwrap();
        clear();
        let without = find(&[], Source::Arena);
        let found: Vec<_> = (0..SITES * 2).map(|i| find(&[0x1000 + i * 8, 0x2000], Source::Arena)).collect();
        assert!(!found[..SITES / 4].contains(&without), "there is room");
        assert!(found.iter().filter(|index| **index == without).count() >= SITES);
        assert_eq!(found[17], find(&[0x1000 + 17 * 8, 0x2000], Source::Arena));
        assert_ne!(found[17], find(&[0x1000 + 17 * 8, 0x2000], Source::Backing));
        assert_eq!(at(found[17]).read().addresses, [0x1000 + 17 * 8, 0x2000]);
        assert_eq!(at(without).read().addresses, [0; 0]);
        clear();
        assert_eq!(all().count(), 2);
    }

    /// Otherwise the peak would add up memory that was not alive at the same time.
    #[test]
    fn a_note_of_the_peak_has_the_sites_from_before_concurrent_changes() {
        let _turn = crate::profile::tests::turn();
        TABLE.map().unwrap();
        live::TABLE.map().unwrap();
        clear();
        live::clear();
        // Requests of this size are always sampled. Each address stands for a request of one call site.
        const BYTES: usize = 64 << 20;
        let allocate = |at: usize| allocated(at, BYTES, Source::Arena, || BYTES);
        let peak_bytes = || all().map(|(_, site)| site.read().peak.bytes).sum::<u64>();
        let mut number = None;
        for at in [1 << 30, 2 << 30, 3 << 30, 4 << 30] {
            if at == 4 << 30 {
                number = begin_note(NOTE.load(Ordering::Relaxed));
            }
            allocate(at);
        }
        end_note(number.expect("nobody else notes"));
        assert_eq!(peak_bytes(), 3 * BYTES as u64, "memory that came during the note is in it");
        let number = begin_note(NOTE.load(Ordering::Relaxed)).expect("nobody else notes");
        freed(1 << 30);
        end_note(number);
        assert_eq!(peak_bytes(), 4 * BYTES as u64, "memory that went during the note is not in it");
        clear();
        live::clear();
    }
}
