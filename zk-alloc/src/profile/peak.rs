//! The sites at the peak of the live bytes.
//!
//! Live bytes rise until something is freed. So the sites are noted just before a free, if the live bytes are above the last noted peak
//! by 1/256. Other threads allocate and free during a note. They note a site themselves before they change it.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::sites::{self, Entry};
use crate::os;

/// The estimated live bytes of all sites.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
/// The live bytes when the sites were last noted.
static NOTED_BYTES: AtomicU64 = AtomicU64::new(0);
/// The [generation](os::process_generation) of the process of which a thread is noting the sites; 0 if none is. A forked child may
/// find its parent's.
static NOTING: AtomicU64 = AtomicU64::new(0);
/// The number of the last note that was completed. The next one has the next number.
static NUMBER: AtomicU32 = AtomicU32::new(0);

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
    let noted = NOTED_BYTES.load(Ordering::Relaxed);
    if live_bytes() > noted + noted / STEP {
        note();
    }
}

/// A site is about to change. If a thread notes the sites now, the note gets what the site has before.
pub(super) fn about_to_change(site: &Entry) {
    // Read first: if the note ends now, a later one is not mistaken for it.
    let number = NUMBER.load(Ordering::Acquire) + 1;
    if NOTING.load(Ordering::Relaxed) == os::process_generation() {
        site.note_peak(number);
    }
}

/// Notes the sites, if the live bytes are above the noted peak.
pub(super) fn catch_up() {
    if live_bytes() > NOTED_BYTES.load(Ordering::Relaxed) {
        note();
    }
}

/// Notes the sites, unless another thread does, or this thread was interrupted while it did.
#[cold]
fn note() {
    if let Some(number) = begin_note() {
        end_note(number);
    }
}

/// From now on, a thread that changes a site notes it before. Returns the number of this note.
fn begin_note() -> Option<u32> {
    let own = os::process_generation();
    let noting = NOTING.load(Ordering::Relaxed);
    if noting == own || NOTING.compare_exchange(noting, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return None;
    }
    if noting != 0 {
        // A thread of the parent began this number, and did not come along.
        NUMBER.fetch_add(1, Ordering::Relaxed);
    }
    Some(NUMBER.load(Ordering::Relaxed) + 1)
}

fn end_note(number: u32) {
    let noted = sites::all().map(|site| site.note_peak(number)).sum();
    NOTED_BYTES.store(noted, Ordering::Relaxed);
    NUMBER.store(number, Ordering::Release);
    NOTING.store(0, Ordering::Release);
}

/// The peak is what is alive now.
pub(super) fn mark() {
    NOTED_BYTES.store(0, Ordering::Relaxed);
    note();
}

/// Forgets the peak.
pub(super) fn clear() {
    LIVE_BYTES.store(0, Ordering::Relaxed);
    NOTED_BYTES.store(0, Ordering::Relaxed);
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
                number = begin_note();
            }
            allocate(at);
        }
        end_note(number.expect("nobody else notes"));
        assert_eq!(peak_bytes(), 3 * BYTES as u64, "memory that came during the note is in it");
        let number = begin_note().expect("nobody else notes");
        freed(1 << 30);
        end_note(number);
        assert_eq!(peak_bytes(), 4 * BYTES as u64, "memory that went during the note is not in it");
        sites::clear();
        live::clear();
        clear();
    }
}
