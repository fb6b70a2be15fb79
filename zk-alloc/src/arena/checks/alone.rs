//! Tests of the whole arena, each in a process of its own, so that no other test uses the arena's address space.
#![allow(unsafe_code, reason = "asks for memory, writes to it, and frees it")]

use std::ptr::NonNull;
use std::sync::Barrier;
use std::thread;

use crate::arena::pages::layout::RunKind;
use crate::arena::{self, Arena, Contents, front};
use crate::config::{self, Settings};
use crate::os;

/// Runs the calling test in a process of its own, so that no other test uses the arena's address space. Returns the arena in that
/// process, and `None` in this one.
fn alone() -> Option<&'static Arena> {
    const ALONE: &str = "ZK_ALLOC_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = thread::current().name().expect("a test's thread").to_owned();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args([&name, "--exact"]).env(ALONE, "1").output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{name}: {stdout}");
        return None;
    }
    config::init_settings(&Settings::new());
    Some(arena::open().expect("address space"))
}

// A thread cache that is claimed while its owner tries to use it.

const SIZE: usize = 1000;

fn alloc(arena: &Arena) -> NonNull<u8> {
    arena.alloc(SIZE, 8, Contents::Any).expect("memory")
}

fn free(arena: &Arena, block: NonNull<u8>) {
    // SAFETY: a block of the arena, of this length, which is freed once.
    unsafe { arena.dealloc(block, SIZE) };
}

/// Fills this thread's cache with blocks.
fn fill(arena: &Arena) {
    let blocks: Vec<_> = (0..64).map(|_| alloc(arena)).collect();
    blocks.into_iter().for_each(|block| free(arena, block));
}

/// Fills this thread's cache with blocks, then claims the cache, as a thread of a process with this generation would.
fn fill_and_claim(arena: &Arena, generation: u64) {
    fill(arena);
    let entered = front::enter().expect("this thread has a cache");
    assert!(entered.claim(generation));
}

/// The claimant does not exist in a forked child, so no thread there would ever withdraw the claim.
#[cfg(target_os = "linux")]
#[test]
fn a_forked_child_uses_its_cache_although_it_was_claimed_at_the_fork() {
    let Some(arena) = alone() else { return };
    fill_and_claim(arena, os::process_generation());
    let cached = arena::cached_bytes();
    let code = os::forks::in_a_fork(|| {
        let block = alloc(arena);
        let took_a_cached_one = arena::cached_bytes() < cached;
        free(arena, block);
        u8::from(!(took_a_cached_one && arena::cached_bytes() == cached))
    });
    assert_eq!(code, 0);
}

/// While the claim stands, the claimant empties the cache. An owner that dropped the claim would take the same blocks.
#[test]
fn a_claim_of_this_process_stands_until_its_claimant_withdraws_it() {
    let Some(arena) = alone() else { return };
    fill_and_claim(arena, os::process_generation());
    let cached = arena::cached_bytes();
    let blocks: Vec<_> = (0..100).map(|_| alloc(arena)).collect();
    assert_eq!(arena::cached_bytes(), cached, "blocks were taken out of a claimed cache");
    blocks.into_iter().for_each(|block| free(arena, block));
    assert_eq!(arena::cached_bytes(), cached, "blocks were put into a claimed cache");
    assert!(front::enter().is_none());
}

/// A thread that fetched more blocks although its cache has some would hold more than it needs.
#[test]
fn after_a_stale_claim_is_dropped_cached_blocks_are_used_before_others_are_fetched() {
    let Some(arena) = alone() else { return };
    fill_and_claim(arena, u64::MAX);
    let cached = arena::cached_bytes();
    let block = alloc(arena);
    assert!(arena::cached_bytes() < cached, "{cached} bytes were cached, now {}", arena::cached_bytes());
    free(arena, block);
    assert_eq!(arena::cached_bytes(), cached);
}

/// Without a fence, no thread can know whether another thread is using its cache.
#[cfg(target_os = "linux")]
#[test]
fn another_threads_cache_is_emptied_only_after_a_fence() {
    use crate::os::seccomp::{self, Answer};

    let Some(arena) = alone() else { return };
    let turn = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                fill(arena);
                turn.wait();
                turn.wait();
            }
        });
        // Returns the cached bytes before and after a trim, with the other thread idle.
        let trimmed = || {
            turn.wait();
            let before = arena::cached_bytes();
            arena::purge::trim(arena, 0, arena::Purge::Now);
            let after = arena::cached_bytes();
            turn.wait();
            (before, after)
        };
        let (fenced, before) = (os::fence_other_threads(), trimmed());
        let is_refused = seccomp::refuse(&[libc::SYS_membarrier], Answer::Errno(libc::EPERM));
        let after = trimmed();
        assert!(before.0 >= SIZE && (before.1 == 0) == fenced, "a fence: {fenced}, cached: {before:?}");
        assert!(is_refused && after.0 >= SIZE && after.0 == after.1, "no fence, cached: {after:?}");
    });
}

// Runs that grow by moving their pages to another place.

/// If the kernel moves only some of the pages, the arena recognises them at the new place, because they are not zero there. So the place
/// must read as zeroes before the move.
#[test]
fn a_partly_resident_place_reads_as_zeroes_before_pages_move_to_it() {
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
    assert_eq!((place, is_copied), (first, false), "half of the place is resident");
    // SAFETY: claimed above.
    let contents = unsafe { std::slice::from_raw_parts(place.as_ptr(), BYTES) };
    assert!(contents.iter().all(|&byte| byte == 0));
    // SAFETY: as above; it is not used afterwards.
    unsafe { zone.release(place, BYTES) };
    // Now the whole place is resident.
    let (place, is_copied) = zone.claim_to_move(BYTES / 2, 8, BYTES / 2).expect("memory");
    assert_eq!((place, is_copied), (first, true), "a copy to resident memory takes no faults");
}

/// Each move splits a mapping, and a process at its limit of mappings can't even start a thread.
#[test]
#[cfg(target_os = "linux")]
fn moves_stop_before_the_process_runs_out_of_mappings() {
    const FROM: usize = 4 << 20;
    const LIMIT: usize = 120;
    let Some(arena) = alone() else { return };
    let mappings = || std::fs::read_to_string("/proc/self/maps").expect("Linux has it").lines().count();
    let before = mappings();
    os::set_max_mappings(LIMIT);
    let mut runs: Vec<_> = (0..60).map(|_| arena.alloc(FROM, 8, Contents::Any).expect("memory")).collect();
    let mut len = FROM;
    for (index, &at) in runs.iter().enumerate() {
        // SAFETY: a run of this length that the test owns.
        unsafe { at.cast::<usize>().write(index) };
    }
    for _ in 0..2 {
        for at in &mut runs {
            // SAFETY: as above; the old place is not used afterwards.
            *at = unsafe { arena.grow_elsewhere(*at, len, 2 * len, 8, || ()) }.expect("memory");
        }
        len *= 2;
    }
    let alive = mappings();
    // SAFETY: as above.
    assert!(runs.iter().enumerate().all(|(index, &at)| unsafe { at.cast::<usize>().read() } == index));
    assert!(alive > before + LIMIT / 8, "{before} mappings, {alive} after the moves");
    assert!(alive <= before + LIMIT / 4 + 10, "{before} mappings, {alive} after the moves");
    for at in runs {
        // SAFETY: as above; it is freed once.
        unsafe { arena.dealloc(at, len) };
    }
    let freed = mappings();
    assert!(freed <= before + LIMIT / 8 + 10, "{before} mappings, {freed} after all was freed");
    arena::purge::trim(arena, 0, arena::Purge::Now);
    let purged = mappings();
    assert!(purged <= before + 12, "{before} mappings, {purged} after all was purged");
}

/// The cost of a request while many threads are alive, and after they have ended. The tests count the caches that are visited by walks over
/// the thread caches.
#[cfg(target_os = "linux")]
mod threads {
    use std::alloc::{GlobalAlloc, Layout};
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::arena::front::VISITS;
    use crate::{ZkAllocator, tuning};

    static RESIDENT: ZkAllocator = ZkAllocator::resident();
    const THREADS: usize = 2_000;
    const REQUESTS: usize = 1_000;

    fn use_memory(bytes: usize) {
        let layout = Layout::from_size_align(bytes, 8).expect("a small layout");
        // SAFETY: the layout is not empty, and the memory is freed once.
        unsafe { RESIDENT.dealloc(RESIDENT.alloc(layout), layout) };
    }

    /// Counts the caches that walks visit during [`REQUESTS`] requests, all of which take memory that is not resident.
    fn visits_of_growth(bytes: usize) -> usize {
        let layout = Layout::from_size_align(bytes, 8).expect("a small layout");
        let before = VISITS.load(Ordering::Relaxed);
        for _ in 0..REQUESTS {
            // SAFETY: the layout is not empty. The memory leaks.
            assert!(!unsafe { RESIDENT.alloc(layout) }.is_null());
        }
        VISITS.load(Ordering::Relaxed) - before
    }

    /// Calls `while_they_live` while [`THREADS`] threads are alive, each with a cached block and a cached run.
    fn with_threads(while_they_live: impl FnOnce()) {
        let barrier = Barrier::new(THREADS + 1);
        thread::scope(|scope| {
            let run = || {
                use_memory(100);
                use_memory(64 << 10);
                barrier.wait();
                barrier.wait();
            };
            let spawn = |_| thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, run).expect("a thread");
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            barrier.wait();
            while_they_live();
            barrier.wait();
            // The end of a scope does not wait for thread-exit destructors.
            threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        });
    }

    #[test]
    fn no_request_visits_the_caches_of_threads_that_ended() {
        let Some(_) = alone() else { return };
        use_memory(100);
        with_threads(|| ());
        for bytes in [8 << 10, 300 << 10] {
            let visits = visits_of_growth(bytes);
            // The threads of the test harness have caches, too.
            assert!(visits <= 16 * REQUESTS, "{visits} visits in {REQUESTS} requests of {bytes} bytes");
        }
    }

    #[test]
    fn a_request_visits_no_more_caches_than_its_pages_pay_for() {
        let Some(_) = alone() else { return };
        use_memory(100);
        with_threads(|| {
            for pages in [2, 10] {
                let visits = visits_of_growth(pages * 4096);
                // A request may visit caches to take their runs, and to sum up their sizes for the peak. A request for a block may also
                // claim a whole slab and fetch several blocks. So the limit is a multiple of the visits that its pages pay for.
                let most = REQUESTS * 4 * tuning::visits_a_page() * (pages + 1);
                assert!(visits <= most, "{visits} visits in {REQUESTS} requests of {pages} pages");
            }
        });
    }
}
