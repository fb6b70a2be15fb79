//! When the system refuses memory, requests go to the backing allocator and are counted. The arena writes one warning,
//! and never aborts a program that would have run without it.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::{env, fs, io};

use crate::ALLOC;
use crate::pressure::child_in_a_group;
use crate::support::blocks::MIB;
use crate::support::process::{limited, without_more_memory};
use crate::support::{
    Ended, address_space_bytes, assert_patterned, child, is_alone, may_change_host, patterned, rss_bytes, skip,
    with_one_warning, without_warnings,
};
use zk_alloc::{overflow_stats, phase, reset_overflow_stats, stats};

/// The work of a prover, scaled down: buffers of all sizes at once, checked.
fn prove(largest_words: usize) {
    let made: Vec<_> = [700, 4_000, 9_000, 50_000, largest_words].map(|len| patterned(len, len as u64)).into();
    made.iter().for_each(|words| assert_patterned(words, words.len() as u64));
}

/// Whether a vector can grow by 800 MiB.
fn reserve(words: &mut Vec<u64>) -> bool {
    let had = words.try_reserve_exact(100 * MIB).is_ok();
    black_box(words);
    had
}

/// Whether 800 MiB of zeroes can be allocated.
fn zeroed() -> bool {
    let layout = Layout::from_size_align(800 * MIB, 64).unwrap();
    // SAFETY: the layout's size is not zero.
    let at = black_box(unsafe { ALLOC.alloc_zeroed(layout) });
    if !at.is_null() {
        // SAFETY: allocated just above, with this layout.
        unsafe { ALLOC.dealloc(at, layout) };
    }
    !at.is_null()
}

/// Without address space for the tables of the smallest region, there is no arena. The backing allocator serves every
/// request for the arena, and the overflow counts include it.
#[test]
fn without_address_space_the_backing_allocator_serves_and_is_counted() {
    with_one_warning(&[], &["address space", "errno 12"], || {
        limited(libc::RLIMIT_AS, address_space_bytes() + 8 * MIB, || {
            (0..5).for_each(|_| phase(|| prove(1 << 17)));
            assert_eq!((stats().address_space_bytes, stats().arena_allocations), (0, 0));
            let (requests, bytes) = overflow_stats();
            assert!(requests >= 5 * 5 && bytes >= 5 * MIB, "{requests} requests, {bytes} bytes were counted");
        });
    });
}

/// If the tables of the preferred region do not fit, the arena uses a smaller region without a warning, which leaves most
/// of the address space to others.
#[test]
fn a_limited_address_space_gets_a_smaller_region() {
    without_warnings(&[], || {
        limited(libc::RLIMIT_AS, address_space_bytes() + 3_000 * MIB, || {
            phase(|| prove(1 << 20));
            let reserved = stats().address_space_bytes;
            assert!((3_000 * MIB..=80_000 * MIB).contains(&reserved), "{}", stats());
            assert!(stats().slab_allocations >= 2 && stats().run_allocations >= 3, "{}", stats());
            let is_left = black_box(Vec::<u8>::new()).try_reserve_exact(1_200 * MIB).is_ok();
            assert!(is_left, "of {reserved} bytes, others get too few");
        });
    });
}

/// The kernel counts memory when it becomes writable, not when it is reserved. So a refusal comes in the middle of a
/// phase. Then the backing allocator serves from its free memory, and the arena from the memory that it had before.
#[test]
fn memory_refused_within_a_phase_is_counted_and_no_contents_are_lost() {
    with_one_warning(&[], &["commit", "errno 12"], || {
        // Free memory of the backing allocator, with a block on top that keeps it from returning that memory to the system.
        let free_later: Vec<_> = (0..4_000u64).map(|seed| patterned(1_000, seed)).collect();
        let top = patterned(1_000, 9);
        drop(free_later);
        phase(|| {
            let before = [patterned(1_000, 1), patterned(100_000, 2)];
            let mut grown = before.clone();
            // Afterwards the zone of slabs has this much memory, and a little that it committed ahead.
            drop(black_box((0..3_000u64).map(|seed| patterned(1_000, seed)).collect::<Vec<_>>()));
            // The results are checked outside, because a panic needs memory.
            let (made, had) = without_more_memory(|| {
                // These need more memory.
                let made: Vec<_> = (0..6_000u64).map(|seed| patterned(1_000, seed)).collect();
                // Neither allocator has enough memory, so these fail. Growth that fails leaves the old contents alone.
                let [small, large] = &mut grown;
                let had = [reserve(&mut Vec::new()), zeroed(), reserve(small), reserve(large)];
                (made, had)
            });
            assert_eq!(had, [false; 4]);
            made.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
            grown.iter().zip(1..).for_each(|(words, seed)| assert_patterned(words, seed));
            before.iter().zip(1..).for_each(|(words, seed)| assert_patterned(words, seed));
            assert_patterned(&top, 9);
        });
        let (requests, bytes) = overflow_stats();
        assert!(requests > 100 && bytes > 100 * 8_000, "{requests} requests, {bytes} bytes");
        assert!(stats().refusals >= 2, "{}", stats());
        // Once memory is available again, the arena grows as usual.
        reset_overflow_stats();
        let live = stats().live_bytes;
        phase(|| {
            let many: Vec<_> = (0..8_000u64).map(|seed| patterned(1_000, seed)).collect();
            many.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
            assert!(stats().live_bytes >= live + 60 * MIB, "{}", stats());
            prove(20 << 20);
        });
        assert_eq!(overflow_stats(), (0, 0));
    });
}

/// In a small container, memory that stays resident between phases must leave room for the rest of the process.
/// Otherwise the kernel ends it. 160 MiB in phases and 110 MiB between them fit 256 MiB only if the arena retains half
/// of that at most.
#[test]
fn in_a_small_control_group_phases_leave_room_for_the_rest_of_the_process() {
    let ended = child_in_a_group(256 * MIB, &[], || {
        for round in 0..10 {
            phase(|| drop([patterned(2 << 20, round), patterned(9 << 20, round), patterned(9 << 20, round)]));
            assert!(stats().resident_bytes <= 128 * MIB, "{}", stats());
            let between = patterned(110 * MIB / 8, round);
            assert!(rss_bytes() <= 250 * MIB, "{} bytes\n{}", rss_bytes(), stats());
            assert_patterned(&between, round);
        }
        assert!(stats().run_allocations >= 30, "{}", stats());
        assert_eq!(overflow_stats(), (0, 0));
    });
    ended.iter().for_each(Ended::assert_passed_without_warnings);
}

/// A setting of the kernel's memory management. Dropping it restores the old value.
struct HostSetting {
    path: &'static str,
    old: String,
}

impl HostSetting {
    fn set(path: &'static str, value: &str) -> io::Result<Self> {
        let old = fs::read_to_string(path)?;
        fs::write(path, value)?;
        Ok(Self { path, old })
    }
}

impl Drop for HostSetting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.path, self.old.trim()) {
            eprintln!("{} is not {} again: {error}", self.path, self.old.trim());
        }
    }
}

/// Turns strict accounting on, with such a high limit that nothing else on the machine is affected.
fn strict_accounting() -> io::Result<[HostSetting; 2]> {
    let ratio = HostSetting::set("/proc/sys/vm/overcommit_ratio", "1000")?;
    Ok([HostSetting::set("/proc/sys/vm/overcommit_memory", "2")?, ratio])
}

/// Under `vm.overcommit_memory=2` the kernel counts all writable memory against a limit, touched or not, and no inaccessible address space.
/// The region is as large as usual, and is committed as it grows. The setting affects the whole machine, so this test changes it only if
/// `ZK_ALLOC_TEST_HOST=1` is set, and restores it.
#[test]
fn strict_accounting_changes_neither_the_region_nor_the_service() {
    if !is_alone() && !may_change_host() {
        return println!("skipped: ZK_ALLOC_TEST_HOST=1 allows to change vm.overcommit_memory for a moment");
    }
    // Two such tests at once would restore each other's settings.
    let lock = fs::File::create(env::temp_dir().join("zk-alloc-test-host.lock")).unwrap();
    let reserved = || {
        let ended = child(&[], || {
            for seed in 0..5 {
                let made: Vec<_> = phase(|| [700, 9_000, 90_000, 10 << 20].map(|len| patterned(len, seed)).into());
                made.iter().for_each(|words| assert_patterned(words, seed));
            }
            assert!(stats().slab_allocations >= 5 && stats().run_allocations >= 15, "{}", stats());
            assert_eq!((stats().refusals, overflow_stats()), (0, (0, 0)));
            println!("reserved {}", stats().address_space_bytes);
        })?;
        ended.assert_passed_without_warnings();
        Some(ended.printed("reserved ").to_owned())
    };
    if is_alone() {
        return drop((reserved(), reserved()));
    }
    lock.lock().unwrap();
    let usual = reserved();
    let _strict = match strict_accounting() {
        Ok(strict) => strict,
        Err(error) => return skip("vm.overcommit_memory can't be changed here", error),
    };
    assert_eq!(reserved(), usual);
}
