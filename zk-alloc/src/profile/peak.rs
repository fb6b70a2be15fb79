//! The sites at the peak of the live bytes.
//!
//! Live bytes rise until something is freed. So the sites are noted just before a free, if the live bytes are above the last noted peak
//! by 1/256. Other threads allocate and free during a note. They note a site themselves before they change it. At a new peak they
//! complete the note, and begin another.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::sites::{self, Entry, NOTE, Tagged, split};
use crate::os;

/// The estimated live bytes of all sites.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// The live bytes when the sites were last noted, with the number of that note ([`Tagged`]).
static NOTED: AtomicU64 = AtomicU64::new(0);

/// The sites are noted if the live bytes exceed the noted ones by one part in this many.
const STEP: u64 = 256;

fn live_bytes() -> u64 {
    u64::try_from(LIVE_BYTES.load(Ordering::Relaxed)).unwrap_or(0)
}

pub(super) fn born(bytes: u64) {
    LIVE_BYTES.fetch_add(bytes as i64, Ordering::Relaxed);
}

pub(super) fn died(bytes: u64) {
    LIVE_BYTES.fetch_sub(bytes as i64, Ordering::Relaxed);
}

/// Notes the sites, if the live bytes are about to fall from a new peak.
pub(super) fn about_to_fall() {
    if is_peak(STEP) {
        note(STEP);
    }
}

/// A site is about to change. If a thread notes the sites now, the note gets what the site has before.
pub(super) fn about_to_change(site: &Entry) {
    let (number, by) = split(NOTE.load(Ordering::Acquire));
    if by == noting() {
        site.note_peak(number);
    }
}

/// Notes the sites, if the live bytes are above the noted peak.
pub(super) fn catch_up() {
    note(u64::MAX);
}

/// The lower half of [`NOTE`] while a thread of this process notes the sites.
fn noting() -> u32 {
    (os::process_generation() as u32) << 1 | 1
}

fn join(number: u32, by: u32) -> u64 {
    u64::from(number) << 32 | u64::from(by)
}

/// A thread may find so often that others began a note before it.
const MAX_NOTES: usize = 8;

/// Notes the sites, until the noted bytes are the live bytes, but for one part in `step`. A note that is in progress was begun at a lower
/// peak, and its thread may be interrupted for long. So this thread completes it first.
#[cold]
fn note(step: u64) {
    for _ in 0..MAX_NOTES {
        // Read first: if a note is completed after the comparison, this one does not begin.
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
    live_bytes() > noted + noted / step
}

/// From now on, a thread that changes a site notes it before. Returns the number of this note, or nothing if `note` is no longer the
/// last one. A note of the parent's has no thread here, so this one takes its place.
fn begin_note(note: u64) -> Option<u32> {
    let number = split(note).0.wrapping_add(1);
    let next = join(number, noting());
    NOTE.compare_exchange(note, next, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(number)
}

/// Completes the note with this number. Several threads may do so at once.
fn end_note(number: u32) {
    let noted = sites::all().map(|site| site.note_peak(number)).sum();
    raise_noted(number, noted);
    let (in_progress, complete) = (join(number, noting()), join(number, 0));
    _ = NOTE.compare_exchange(in_progress, complete, Ordering::AcqRel, Ordering::Relaxed);
}

fn set_noted(number: u32) {
    NOTED.store(Tagged::new(number, 0).0, Ordering::Relaxed);
}

/// Raises the noted bytes, unless they are those of a later note: a thread that is late has a sum from before a mark.
fn raise_noted(number: u32, bytes: u64) {
    let raise = |noted| {
        let noted = Tagged(noted);
        (noted.is_before(number) || noted == Tagged::new(number, noted.bytes()))
            .then(|| Tagged::new(number, noted.bytes().max(bytes)).0)
    };
    _ = NOTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
}

/// The peak is what is alive now.
pub(super) fn mark() {
    for _ in 0..MAX_NOTES {
        let note = NOTE.load(Ordering::Acquire);
        let (number, by) = split(note);
        if by == noting() {
            end_note(number);
        } else if let Some(number) = begin_note(note) {
            set_noted(number);
            return end_note(number);
        }
    }
}

/// Forgets the peak.
pub(super) fn clear() {
    LIVE_BYTES.store(0, Ordering::Relaxed);
    set_noted(sites::last_note());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::sites::Source;
    use crate::profile::{allocated, freed, live, tests};

    /// Otherwise the peak would have memory that was not alive at the same time.
    #[test]
    fn what_changes_while_the_peak_is_noted_is_in_it_as_it_was_before() {
        let _turn = tests::turn();
        sites::open().unwrap();
        live::open().unwrap();
        sites::clear();
        live::clear();
        clear();
        // Requests of this size are always sampled. Each address stands for a request of one call site.
        const BYTES: usize = 64 << 20;
        let allocate = |at: usize| allocated(at, BYTES, Source::Arena, || BYTES);
        let peak_bytes = || sites::all().map(|site| site.read().peak.bytes).sum::<u64>();
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
        sites::clear();
        live::clear();
        clear();
    }
}
