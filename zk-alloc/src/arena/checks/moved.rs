//! The place that pages move to.
#![allow(unsafe_code, reason = "writes to memory, and frees it")]

use super::alone;
use crate::arena::Contents;
use crate::route::RunKind;

/// If the kernel moves only a part of the pages, the arena finds that part: it is not zero at the new place.
#[test]
fn a_place_for_pages_that_is_resident_in_part_reads_as_zeroes() {
    const BYTES: usize = 8 << 20;
    let Some(arena) = alone() else { return };
    let first = arena.alloc(BYTES / 2, 8, Contents::Any).expect("memory");
    // SAFETY: a run of the arena, of this length, which is freed once.
    unsafe {
        first.write_bytes(0xA5, BYTES / 2);
        arena.dealloc(first, BYTES / 2);
    }
    let zone = arena.region.zone(RunKind::Mid);
    let (place, is_copied) = zone.claim_to_move(BYTES, 8, BYTES).expect("memory");
    assert_eq!((place, is_copied), (first, false), "half of the place was resident");
    // SAFETY: claimed above.
    let held = unsafe { std::slice::from_raw_parts(place.as_ptr(), BYTES) };
    assert!(held.iter().all(|&byte| byte == 0));
    // SAFETY: as above; it is not used any more.
    unsafe { zone.release(place, BYTES) };
    // Now the whole place is resident.
    let (place, is_copied) = zone.claim_to_move(BYTES / 2, 8, BYTES / 2).expect("memory");
    assert_eq!((place, is_copied), (first, true), "copied where nothing faults");
}
