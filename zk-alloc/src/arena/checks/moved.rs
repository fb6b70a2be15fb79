//! The place that pages move to.
#![allow(unsafe_code, reason = "writes to memory, and frees it")]

use super::alone;
use crate::arena::Contents;
use crate::arena::pages::layout::RunKind;
use crate::os;

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

/// Each move splits a mapping, and a process without mappings can't even start a thread.
#[test]
#[cfg(target_os = "linux")]
fn moves_stop_before_the_process_runs_out_of_mappings() {
    const FROM: usize = 4 << 20;
    const LIMIT: usize = 120;
    let Some(arena) = alone() else { return };
    let mappings = || std::fs::read_to_string("/proc/self/maps").expect("Linux has it").lines().count();
    let before = mappings();
    os::set_max_mappings(LIMIT);
    let (mut runs, mut len, mut moves) = (Vec::new(), FROM, 0);
    runs.extend((0..60).map(|_| arena.alloc(FROM, 8, Contents::Any).expect("memory")));
    for (index, &at) in runs.iter().enumerate() {
        // SAFETY: a run of this length that the test owns.
        unsafe { at.cast::<usize>().write(index) };
    }
    for _ in 0..2 {
        for at in &mut runs {
            // SAFETY: as above; the old place is not used any more.
            match unsafe { arena.grow_elsewhere(*at, len, 2 * len, 8, || ()) } {
                Some(to) => (*at, moves) = (to, moves + 1),
                None => panic!("no memory"),
            }
        }
        len *= 2;
    }
    let alive = mappings();
    // SAFETY: as above.
    assert!(runs.iter().enumerate().all(|(index, &at)| unsafe { at.cast::<usize>().read() } == index));
    assert_eq!(moves, 120);
    assert!(alive > before + LIMIT / 8, "{before} mappings, {alive} after the moves");
    assert!(alive <= before + LIMIT / 4 + 10, "{before} mappings, {alive} after the moves");
    for at in runs {
        // SAFETY: as above; it is freed once.
        unsafe { arena.dealloc(at, len) };
    }
    let freed = mappings();
    assert!(freed <= before + LIMIT / 8 + 10, "{before} mappings, {freed} after all was freed");
    crate::arena::purge::trim(arena, 0, crate::arena::Purge::Now);
    let purged = mappings();
    assert!(purged <= before + 12, "{before} mappings, {purged} after all was purged");
}
