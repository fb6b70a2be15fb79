//! Huge pages afterwards. Where the first touch of a huge page costs more than it saves, memory is paged in in small pages; of what
//! has stayed, the kernel makes huge ones (`MADV_COLLAPSE`), at the hands of a task beside the program's threads
//! ([`os::start_task`]).
//!
//! Whatever a huge page costs on the host, the task takes no more than a small part of one processor's time: it rests after each in
//! proportion to what that took. It comes when memory became resident since it was there last, goes through the arena once, and
//! ends; earlier where memory goes back meanwhile, so that an idle process has no such task. Nothing changes that anybody could
//! read, and only what is in memory with all its pages is made huge: what is resident stays as it is. What its owner gives back
//! while it is made huge, the kernel brings back, and the task gives it back again.
//!
//! A forked child may take its parent's task for its own. Then it stays in small pages.
#![allow(unsafe_code, reason = "has memory copied that others use")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::budget;
use super::zone::Zone;
use crate::os::{self, Errno, HUGE_PAGE_BYTES, Parking};

/// The task rests so many times as long as a huge page took: it uses 2% of a processor.
const REST_PARTS: u32 = 50;
/// A task comes when so many bytes became resident since it was there last...
const WORTHWHILE_BYTES: u64 = 16 << 20;
/// ... and this part of all that is.
const WORTHWHILE_PART: u64 = 2;
/// Blocks in a row that the kernel refuses before the task gives up: it knows no such call, or has no memory.
const MOST_REFUSED: usize = 8;

/// What takes less was huge before: nobody copies 2 MiB so fast.
const LEAST_TIME: Duration = Duration::from_micros(20);

/// One of the constants below.
static STATE: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = 0;
const AT_WORK: u8 = 1;
/// The system refused a task, or the kernel to make anything huge.
const REFUSED: u8 = 2;

/// Bytes that had become resident by being handed out when the last task began, and that were resident.
static FRESH_BYTES: AtomicU64 = AtomicU64::new(0);
static RESIDENT_BYTES: AtomicUsize = AtomicUsize::new(0);
static COLLAPSED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that were made huge pages since the process started.
pub(crate) fn collapsed_bytes() -> usize {
    COLLAPSED_BYTES.load(Ordering::Relaxed)
}

/// Called when what was used may be used again: starts a task that runs `work`, which is to call [`go_through`], if there may be
/// something to do.
pub(super) fn look(fresh_bytes: impl FnOnce() -> u64, work: fn()) {
    if STATE.load(Ordering::Relaxed) == NONE {
        look_closer(fresh_bytes(), work);
    }
}

#[cold]
fn look_closer(fresh: u64, work: fn()) {
    let resident = budget::resident_bytes();
    let handed_out = fresh.saturating_sub(FRESH_BYTES.load(Ordering::Relaxed));
    let more = handed_out.max(resident.saturating_sub(RESIDENT_BYTES.load(Ordering::Relaxed)) as u64);
    let is_worthwhile = more >= WORTHWHILE_BYTES && more >= resident as u64 / WORTHWHILE_PART;
    if !is_worthwhile || STATE.compare_exchange(NONE, AT_WORK, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    FRESH_BYTES.store(fresh, Ordering::Relaxed);
    RESIDENT_BYTES.store(resident, Ordering::Relaxed);
    if os::start_task(c"zk-alloc-huge", work).is_err() {
        STATE.store(REFUSED, Ordering::Relaxed);
    }
}

/// What the task does: makes huge pages of what is in memory in these zones. `give_back_unbooked` is to give back what is free of
/// a part of a zone, and not known to be resident.
pub(super) fn go_through<'a>(
    zones: impl IntoIterator<Item = &'a Zone>,
    give_back_unbooked: impl Fn(&Zone, NonNull<u8>, usize),
) {
    let mut refused = 0;
    // What was given back meanwhile is no longer needed: the process idles.
    let is_idle = || budget::resident_bytes() < RESIDENT_BYTES.load(Ordering::Relaxed) / 4 * 3;
    let blocks = zones.into_iter().flat_map(|zone| blocks(zone).map(move |block| (zone, block)));
    let gave_up = blocks.take_while(|_| !is_idle()).any(|(zone, block)| {
        let settle = || give_back_unbooked(zone, block, HUGE_PAGE_BYTES);
        refused = if collapse(block, settle).is_ok() { 0 } else { refused + 1 };
        refused >= MOST_REFUSED
    });
    STATE.store(if gave_up { REFUSED } else { NONE }, Ordering::Release);
}

/// The places for huge pages in what is committed of a zone.
fn blocks(zone: &Zone) -> impl Iterator<Item = NonNull<u8>> {
    let (base, len) = zone.committed_memory();
    let first = base.align_offset(HUGE_PAGE_BYTES);
    let offsets = (first..).step_by(HUGE_PAGE_BYTES).take_while(move |offset| offset + HUGE_PAGE_BYTES <= len);
    // SAFETY: within what is committed.
    offsets.map(move |offset| unsafe { base.add(offset) })
}

/// Makes a block a huge page, if all of it is in memory, and rests. What was given back meanwhile is in memory again; `settle` is
/// to mend that.
fn collapse(block: NonNull<u8>, settle: impl Fn()) -> Result<(), Errno> {
    // Nobody wakes it.
    static BED: Parking = Parking::new();
    let at = block.as_ptr();
    // SAFETY: committed memory of a zone, which stays mapped.
    if unsafe { os::count_resident(at, HUGE_PAGE_BYTES) } != Some(HUGE_PAGE_BYTES) {
        return Ok(());
    }
    let begun = os::monotonic_ns();
    // SAFETY: as above; what it holds stays.
    unsafe { os::collapse(at, HUGE_PAGE_BYTES)? };
    let took = Duration::from_nanos(os::monotonic_ns().saturating_sub(begun));
    if took >= LEAST_TIME {
        settle();
        COLLAPSED_BYTES.fetch_add(HUGE_PAGE_BYTES, Ordering::Relaxed);
        BED.sleep(BED.ticket(), Some(took * REST_PARTS));
        // What was just being given back still had an owner then.
        settle();
    }
    Ok(())
}
