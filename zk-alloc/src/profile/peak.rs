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
    let own = os::process_generation();
    let noting = NOTING.load(Ordering::Relaxed);
    if noting == own || NOTING.compare_exchange(noting, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    if noting != 0 {
        // A thread of the parent began this number, and did not come along.
        NUMBER.fetch_add(1, Ordering::Relaxed);
    }
    let number = NUMBER.load(Ordering::Relaxed) + 1;
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
