//! The background thread collapses memory that stays resident in small pages into huge pages. Other threads may read
//! and write it: no byte changes, and no more memory becomes resident.
#![cfg(target_os = "linux")]

#[path = "support/maps.rs"]
mod maps;
mod support;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use maps::{resident_bytes_around, tolerance_bytes};
use support::{huge_page_bytes, in_its_own_process, scribble};
use zk_alloc::{HugePagesOutcome, ZkAllocator, phase, release, start_background_thread, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const MIB: usize = 1 << 20;
const BYTES: usize = 48 * MIB;

const LATER: &[(&str, &str)] = &[("ZK_ALLOC_THP", "later"), ("ZK_ALLOC_BACKGROUND", "1")];

/// Whether the kernel can collapse: the host has huge pages and gives them only on request, and the call exists (Linux
/// 6.1).
fn is_possible() -> bool {
    let is_wished = stats().huge_pages == Some(HugePagesOutcome::Later);
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux has it");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let is_possible = is_wished && enabled.contains("[madvise]") && version >= (6, 1);
    if !is_possible {
        println!("nothing is made huge here: {is_wished}, {enabled:?}, {version:?}");
    }
    is_possible
}

/// Waits until this number of bytes was collapsed.
fn wait_for(bytes: usize) {
    let begun = Instant::now();
    while stats().collapsed_bytes < bytes {
        assert!(begun.elapsed() < Duration::from_secs(50), "only {} bytes were made huge", stats().collapsed_bytes);
        thread::sleep(Duration::from_millis(5));
    }
}

/// A thread counts up words while the kernel moves them.
#[test]
fn memory_in_use_becomes_huge_and_nobody_notices() {
    in_its_own_process("memory_in_use_becomes_huge_and_nobody_notices", LATER, || {
        let words = phase(|| (0..(BYTES / 8) as u64).map(AtomicU64::new).collect::<Vec<_>>());
        if !is_possible() {
            return assert_eq!(stats().collapsed_bytes, 0);
        }
        let is_over = AtomicBool::new(false);
        let rounds = thread::scope(|scope| {
            let count_up = || {
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) {
                    words.iter().for_each(|word| word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
                    rounds += 1;
                }
                rounds
            };
            let rounds = scope.spawn(count_up);
            // All but the two ends.
            wait_for(BYTES - 4 * MIB);
            is_over.store(true, Ordering::Relaxed);
            rounds.join().expect("it only counts")
        });
        assert!(words.iter().zip(rounds..).all(|(word, expected)| word.load(Ordering::Relaxed) == expected));
        assert!(huge_page_bytes() >= BYTES - 4 * MIB, "{} in huge pages", huge_page_bytes());
    });
}

#[test]
fn what_is_resident_stays_as_it_is_and_goes_when_asked() {
    in_its_own_process("what_is_resident_stays_as_it_is_and_goes_when_asked", LATER, || {
        let survivor = phase(|| {
            drop(black_box(vec![1u8; BYTES]));
            vec![2u8; MIB]
        });
        if !is_possible() {
            return;
        }
        let resident = |context: &str| {
            let stats = stats();
            let (told, kernel) =
                (stats.resident_bytes, resident_bytes_around(survivor.as_ptr().addr(), stats.address_space_bytes));
            assert!(told.abs_diff(kernel) <= tolerance_bytes(told), "{context}: {told} told, {kernel} in memory");
            told
        };
        let before = resident("in small pages");
        wait_for(BYTES - 4 * MIB);
        assert!(resident("in huge pages") <= before + MIB);
        phase(scribble);
        release();
        let left = resident("after release()");
        assert!(left <= 4 * MIB, "{left} bytes stay of {}", survivor.len());
        assert!(survivor.iter().all(|&byte| byte == 2));
    });
}

/// A table that was allocated and hardly used does not become resident.
#[test]
fn what_is_not_in_memory_stays_out() {
    in_its_own_process("what_is_not_in_memory_stays_out", LATER, || {
        let (table, _dense) = phase(|| (black_box(vec![0u8; BYTES]), black_box(vec![1u8; BYTES])));
        if !is_possible() {
            return;
        }
        wait_for(BYTES - 4 * MIB);
        let in_memory = resident_bytes_around(table.as_ptr().addr(), stats().address_space_bytes);
        assert!(in_memory <= BYTES + 8 * MIB, "{in_memory} bytes");
        assert!(table.iter().all(|&byte| byte == 0));
    });
}

/// The program's own threads collapse nothing.
#[test]
fn without_a_background_thread_nothing_becomes_huge() {
    let settings = [("ZK_ALLOC_THP", "later")];
    in_its_own_process("without_a_background_thread_nothing_becomes_huge", &settings, || {
        assert_nothing_becomes_huge(BYTES);
        if is_possible() {
            // A background thread collapses it as soon as it is started.
            let _survivor = phase(|| black_box(vec![1u8; BYTES]));
            start_background_thread().expect("a thread");
            wait_for(BYTES - 4 * MIB);
        }
    });
}

/// Uses this number of bytes in two phases, and asserts after each wait that nothing was collapsed.
fn assert_nothing_becomes_huge(bytes: usize) {
    let _survivor = phase(|| black_box(vec![1u8; bytes]));
    thread::sleep(Duration::from_millis(200));
    phase(scribble);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(stats().collapsed_bytes, 0);
}

#[test]
fn a_process_that_wished_for_none_stays_in_small_pages() {
    let settings = [("ZK_ALLOC_THP", "never"), ("ZK_ALLOC_BACKGROUND", "1")];
    in_its_own_process("a_process_that_wished_for_none_stays_in_small_pages", &settings, || {
        assert_nothing_becomes_huge(BYTES);
        assert_eq!(stats().huge_pages, Some(HugePagesOutcome::Never));
    });
}

#[test]
fn a_process_that_has_little_is_left_alone() {
    in_its_own_process("a_process_that_has_little_is_left_alone", LATER, || assert_nothing_becomes_huge(8 * MIB));
}
