//! Address space. The arena maps memory as it needs it and reserves no addresses in advance, so a resource limit leaves room for the
//! program, whether it is set before or after the arena opens. If another mapping is in the way of a growing zone, the arena leaves the
//! mapping alone and grows past it.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "sets limits of the process, and maps memory")]

mod support;

use std::hint::black_box;
use std::sync::Barrier;

use support::blocks::MIB;
use support::process::{first_failure, give_up_root, in_a_fork, limited, lockable_bytes};
use support::{
    address_space_bytes, alone, assert_patterned, in_its_own_process, patterned, peak_rss_bytes, skip,
    with_one_warning, without_warnings,
};
use zk_alloc::{ZkAllocator, overflow_stats, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const WORDS: usize = MIB / 8;

/// Does the other work of a program: starts threads, loads a library and maps memory.
fn goes_on() {
    let all_there = &Barrier::new(20);
    std::thread::scope(|scope| {
        for seed in 0..20 {
            scope.spawn(move || {
                all_there.wait();
                phase(|| assert_patterned(&patterned(WORDS, seed), seed));
            });
        }
    });
    // SAFETY: the name is NUL-terminated, and libm's constructors are safe to run.
    assert!(!unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW) }.is_null());
    assert!((0..10).all(|_| foreign_at(None, 100 * MIB).is_some()));
}

/// Allocates 300 MiB of buffers in a phase and returns them.
fn prove() -> Vec<Vec<u64>> {
    phase(|| (0..60).map(|seed| patterned(5 * WORDS, seed)).collect())
}

/// The kernel counts reserved addresses against the limit, even unused ones. An arena that reserved its whole region
/// would leave no address space for threads and libraries.
#[test]
fn a_limit_set_before_or_after_the_arena_opens_leaves_room_for_the_program() {
    for is_open in [false, true] {
        without_warnings(&[], || {
            let before = if is_open { prove() } else { Vec::new() };
            limited(libc::RLIMIT_AS, 4 << 30, || {
                let alive = if is_open { before } else { prove() };
                goes_on();
                let more = prove();
                assert!(stats().arena_bytes >= 600 << 20 && overflow_stats() == (0, 0), "{}", stats());
                alive.iter().chain(&more).zip((0..60).cycle()).for_each(|(words, seed)| assert_patterned(words, seed));
            });
        });
    }
}

/// If the address space is too small for the tables of the preferred region, the arena uses a smaller region without a warning, and leaves
/// most of the address space to the rest of the program.
#[test]
fn a_limited_address_space_gets_a_smaller_region() {
    without_warnings(&[], || {
        limited(libc::RLIMIT_AS, address_space_bytes() + 3_000 * MIB, || {
            phase(|| [700, 4_000, 9_000, 50_000, 8 * WORDS].map(|len| assert_patterned(&patterned(len, 1), 1)));
            let reserved = stats().address_space_bytes;
            assert!((3_000 * MIB..=80_000 * MIB).contains(&reserved), "{}", stats());
            assert!(stats().slab_allocations >= 2 && stats().run_allocations >= 3, "{}", stats());
            let is_left = black_box(Vec::<u8>::new()).try_reserve_exact(1_200 * MIB).is_ok();
            assert!(is_left, "a region of {reserved} bytes leaves the program too little");
        });
    });
}

/// The kernel counts all writable memory as data, including the arena's tables.
#[test]
fn a_limit_on_data_leaves_most_of_it_to_the_program() {
    alone!();
    limited(libc::RLIMIT_DATA, 200 * MIB, || {
        phase(|| assert_patterned(&patterned(20 * WORDS, 1), 1));
        assert!(stats().run_allocations > 0 && foreign_at(None, 120 * MIB).is_some(), "{}", stats());
    });
}

/// Doubles two vectors in turn, starting at 32 MiB. Returns the addresses of each vector in the huge zone.
fn grow_two(steps: usize) -> [Vec<usize>; 2] {
    let mut places = [Vec::new(), Vec::new()];
    let mut vectors = [patterned(32 * WORDS, 1), patterned(32 * WORDS, 2)];
    for _ in 0..steps {
        for ((seed, places), words) in (1..).zip(&mut places).zip(&mut vectors) {
            words.reserve_exact(words.capacity());
            places.push(words.as_ptr().addr());
            assert_patterned(&words[..32 * WORDS], seed);
        }
    }
    places.each_mut().map(|places| {
        places.dedup();
        std::mem::take(places)
    })
}

/// The arena leaves room after a huge run that grows. Otherwise, each vector would block the growth of the other.
#[test]
fn huge_runs_that_grow_in_turn_stay_where_they_are() {
    alone!();
    for _ in 0..3 {
        let places = phase(|| grow_two(4));
        assert!(places.iter().all(|places| places.len() == 1), "{places:x?}");
    }
}

/// The room for growth uses address space. If a limit makes address space scarce, the arena leaves no such room.
#[test]
fn huge_runs_that_grow_leave_scarce_addresses_to_the_program() {
    alone!();
    phase(|| drop(patterned(WORDS, 1)));
    // The second vector's room would begin 512 MiB further on, which is more than a quarter of the remaining limit.
    let limit = address_space_bytes() + 1900 * MIB;
    limited(libc::RLIMIT_AS, limit, || {
        let places = phase(|| grow_two(3));
        assert!(places.iter().any(|places| places.len() > 1) && overflow_stats() == (0, 0), "{places:x?} {}", stats());
        assert!(foreign_at(None, 900 * MIB).is_some());
    });
}

/// The program locks all future mappings, so the kernel refuses mappings beyond the limit on locked memory. The test gives up root, to
/// which the limit does not apply.
#[test]
fn a_program_that_locks_its_future_memory_keeps_its_arena() {
    alone!();
    let is_user = give_up_root();
    phase(|| drop(patterned(60 * WORDS, 1)));
    // SAFETY: the call changes no memory.
    let is_locked = limited(libc::RLIMIT_MEMLOCK, MIB, || unsafe { libc::mlockall(libc::MCL_FUTURE) } == 0);
    assert!(is_locked, "not root: {is_user}");
    let lockable = lockable_bytes() as usize;
    phase(|| assert_patterned(&patterned(50 * WORDS, 2), 2));
    let mut large: Vec<u64> = Vec::new();
    let had = phase(|| large.try_reserve_exact(4 * lockable.min(1 << 30) / 8 + 200 * WORDS).is_ok());
    assert!(!had && stats().refusals > 0, "{}", stats());
    // SAFETY: the call changes no memory.
    assert_eq!(unsafe { libc::munlockall() }, 0);
    phase(|| assert_patterned(&patterned(200 * WORDS, 3), 3));
}

/// While future mappings are locked, reserved room for growth would become resident immediately.
#[test]
fn huge_runs_that_grow_make_no_reserved_memory_resident() {
    alone!();
    // SAFETY: the call only returns the user ID.
    if unsafe { libc::geteuid() } != 0 {
        return skip("vectors that grow in locked memory", "only root may lock so much");
    }
    phase(|| drop(patterned(WORDS, 1)));
    // SAFETY: the call changes no memory.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    phase(|| grow_two(2));
    assert!(peak_rss_bytes() < 500 * MIB, "{} {}", peak_rss_bytes(), stats());
}

/// Maps memory for the program itself, at a given address or where the kernel puts it. Returns `None` if something is already mapped there.
fn foreign_at(place: Option<usize>, len: usize) -> Option<&'static mut [u8]> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (wish, fixed) = place.map_or((0, 0), |place| (place, libc::MAP_FIXED_NOREPLACE));
    let wish = std::ptr::without_provenance_mut(wish);
    // SAFETY: without MAP_FIXED, the call replaces no mapping.
    let at = unsafe { libc::mmap(wish, len, protection, flags | libc::MAP_NORESERVE | fixed, -1, 0) };
    // SAFETY: the mapping is zeroed, nothing else uses it, and it stays mapped.
    (at != libc::MAP_FAILED).then(|| unsafe { std::slice::from_raw_parts_mut(at.cast(), len) })
}

/// Like [`foreign_at`], but maps the first free range after `from`, in steps of 2 MiB.
fn foreign_behind(from: usize, len: usize) -> &'static mut [u8] {
    let places = (0..4096).map(|step| from.next_multiple_of(2 * MIB) + step * 2 * MIB);
    places.filter_map(|place| foreign_at(Some(place), len)).next().expect("a free place")
}

/// Returns whether the first and the last page of each mapping contain only the byte 9.
fn are_intact(foreign: &[&mut [u8]]) -> bool {
    let ends = foreign.iter().flat_map(|bytes| [&bytes[..4096], &bytes[bytes.len() - 4096..]]);
    ends.flatten().all(|&byte| byte == 9)
}

/// If another mapping is in the way of a growing zone, the zone grows past it. The test tries small mappings within a zone, and large ones
/// within and around the region. In the preload library's tests, such a mapping belongs to the backing allocator, and the arena must not
/// mistake it for its own memory.
#[test]
fn the_arena_goes_on_growing_among_foreign_mappings_and_leaves_them_alone() {
    for (count, len) in [(12, MIB), (5, 6 << 30), (20, 6 << 30)] {
        in_its_own_process(&[("ZK_ALLOC_SLAB_GB", "5")], || {
            let is_small = len == MIB;
            // If the mappings are large, maps half of them before the region exists, and the others afterwards.
            let before = if is_small { 0 } else { count / 2 };
            let mut foreign: Vec<_> = (0..before).filter_map(|_| foreign_at(None, len)).collect();
            let own = phase(|| Vec::<u8>::with_capacity(if is_small { MIB } else { 100 * MIB }));
            let behind = own.as_ptr().addr() + own.capacity();
            if is_small {
                foreign.extend((4..16).map(|index| foreign_behind(behind + index * 10 * MIB, len)));
            } else {
                foreign.push(foreign_behind(behind, len));
                foreign.extend((foreign.len()..count).filter_map(|_| foreign_at(None, len)));
            }
            assert_eq!(foreign.len(), count);
            let highest = foreign.iter().map(|bytes| bytes.as_ptr().addr()).max();
            for bytes in &mut foreign {
                bytes[..4096].fill(9);
                bytes[len - 4096..].fill(9);
            }
            let many: Vec<Vec<u64>> = phase(|| (0..50).map(|_| Vec::with_capacity(100 * WORDS)).collect());
            let small: Vec<_> = phase(|| (0..1000).map(|seed| patterned(100 + seed as usize, seed)).collect());
            let mid: Vec<_> = phase(|| (0..200).map(|seed| patterned(WORDS, seed)).collect());
            assert_eq!((overflow_stats(), stats().refusals), ((0, 0), 0), "{}", stats());
            for buffers in [&small, &mid] {
                buffers.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
            }
            let is_behind = mid.iter().map(|words| words.as_ptr().addr()).max() > highest;
            assert!(is_behind || !is_small, "the zone grows after them");
            assert!(are_intact(&foreign));
            drop((own, many, small, mid));
            zk_alloc::release();
            assert!(are_intact(&foreign));
        });
    }
}

/// The kernel places mappings next to each other. The arena's region is far away from them.
#[test]
fn the_kernel_maps_nothing_near_the_region_by_itself() {
    alone!();
    let own = phase(|| patterned(WORDS, 1));
    let theirs = foreign_at(None, MIB).expect("address space").as_ptr().addr();
    let own = own.as_ptr().addr();
    assert!(theirs - own > 4 << 40, "{theirs:x} {own:x}");
}

/// The long runs take up more addresses than slabs can use. They are never touched, so they use no memory.
#[test]
fn small_requests_find_room_beside_any_number_of_long_runs() {
    alone!(&[("ZK_ALLOC_SLAB_GB", "400")]);
    let long: Vec<Vec<u8>> = phase(|| (0..66 * 32).map(|_| Vec::with_capacity(32 * MIB)).collect());
    assert_eq!((overflow_stats(), stats().refusals), ((0, 0), 0), "{}", stats());
    let small: Vec<_> = phase(|| (0..100_000).map(|seed| patterned(25, seed)).collect());
    assert_eq!(overflow_stats(), (0, 0), "{}", stats());
    small.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
    drop(long);
}

#[test]
fn one_warning_says_that_no_addresses_are_left() {
    let words = ["no addresses are left for 104857600 bytes"];
    with_one_warning(&[("ZK_ALLOC_SLAB_GB", "1")], &words, || {
        // Three zones of a few GiB each can't hold 1,000 runs of 100 MiB.
        let many: Vec<Vec<u8>> = phase(|| (0..1000).map(|_| Vec::with_capacity(100 * MIB)).collect());
        let small: Vec<_> = phase(|| (0..1000).map(|seed| patterned(100, seed)).collect());
        assert!(overflow_stats().0 > 100 && many.len() == 1000, "{:?} {}", overflow_stats(), stats());
        small.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
    });
}

/// Returns how often this thread has waited in the kernel (its voluntary context switches).
fn waits() -> i64 {
    // SAFETY: all zeroes is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_nvcsw
}

/// A process may fork while other threads are growing a zone. The child inherits what these threads have claimed, but not the threads.
#[test]
fn children_of_forks_while_zones_grow_neither_wait_nor_overflow() {
    const FORKS: usize = 100;
    without_warnings(&[("ZK_ALLOC_SLAB_GB", "400")], || {
        // Makes the process large, so each fork takes long enough that the other threads grow a zone during it, and wait in the kernel.
        let large = phase(|| patterned(200 * WORDS, 1));
        let (round, mut codes) = (&Barrier::new(5), [0; 2]);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    // The buffers are neither touched nor freed, so a zone grows at each request.
                    let mut kept: Vec<Vec<u8>> = Vec::with_capacity(4 * FORKS);
                    for _ in 0..FORKS {
                        round.wait();
                        phase(|| kept.extend((0..4).map(|_| Vec::with_capacity([33, 70][thread % 2] * MIB))));
                    }
                });
            }
            for _ in 0..FORKS {
                round.wait();
                let code = in_a_fork(|| {
                    let before = waits();
                    let mut kept: Vec<Vec<u64>> = Vec::with_capacity(64);
                    phase(|| kept.extend((0..40).map(|_| Vec::with_capacity(2 * WORDS))));
                    phase(|| kept.extend((0..4).map(|_| Vec::with_capacity(100 * WORDS))));
                    kept.iter_mut().for_each(|words| words.push(7));
                    let is_intact = kept.iter().all(|words| words[0] == 7);
                    let is_served = overflow_stats() == (0, 0) && stats().refusals == 0;
                    first_failure(&[is_served, is_intact, waits() - before <= 20])
                });
                codes[usize::from(code != 0)] = code;
            }
        });
        assert_eq!(codes[1], 0, "1: overflow or a refusal, 2: contents, 3: waits");
        assert_patterned(&large, 1);
        assert_eq!((overflow_stats(), stats().refusals), ((0, 0), 0), "{}", stats());
    });
}
