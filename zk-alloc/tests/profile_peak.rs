//! The peak of a profile has what was alive at one moment, also where several threads change it.
#![cfg(all(feature = "profile", target_os = "linux"))]

mod support;

use std::hint::black_box;
use std::sync::Barrier;

use support::{Numbers, in_its_own_process};
use zk_alloc::ZkAllocator;
use zk_alloc::profile::{self, Source};
use zk_alloc::{stats, take_peak_live_bytes};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

const MIB: u64 = 1 << 20;

/// Allocates with a call site of its own for each `path`: its bits say which calls lead there.
fn make_by_path(path: u32, calls: u32, made: &mut Vec<Vec<u8>>) {
    #[inline(never)]
    fn zero(path: u32, calls: u32, made: &mut Vec<Vec<u8>>) {
        make_by_path(path, calls, made);
        black_box(made);
    }
    #[inline(never)]
    fn one(path: u32, calls: u32, made: &mut Vec<Vec<u8>>) {
        make_by_path(path, calls, made);
        black_box((made, "not the code of `zero`"));
    }
    match (calls, path & 1) {
        (0, _) => made.push(vec![1u8; 100]),
        (_, 0) => zero(path >> 1, calls - 1, made),
        (_, _) => one(path >> 1, calls - 1, made),
    }
}

/// While one thread notes a thousand call sites, others free what made the peak.
#[test]
fn the_peak_has_what_threads_free_while_it_is_noted() {
    const THREADS: usize = 4;
    in_its_own_process(&[("ZK_ALLOC_PROFILE", "0")], || {
        profile::start(1);
        let mut made = Vec::new();
        (0..1 << 10).for_each(|path| make_by_path(path, 10, &mut made));
        assert!(profile::snapshot().sites.len() >= 1 << 10);
        for _ in 0..50 {
            profile::mark();
            let full = Barrier::new(THREADS);
            let work = || {
                let held = hold_eight_mib();
                full.wait();
                drop(held);
            };
            std::thread::scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(work)));
            let peak: u64 =
                profile::snapshot().sites.iter().map(|site| site.peak.bytes).filter(|&bytes| bytes >= MIB).sum();
            assert_eq!(peak, THREADS as u64 * 8 * MIB);
        }
    });
}

#[inline(never)]
fn hold_eight_mib() -> Vec<u8> {
    black_box(vec![1u8; 8 * MIB as usize])
}

/// With every request sampled, the estimates are exact. The counted peak has the blocks in the thread's cache too, of some MiB.
#[test]
fn totals_are_those_of_the_counters() {
    in_its_own_process(&[("ZK_ALLOC_PROFILE", "0")], || {
        let mut numbers = Numbers::new(3);
        let mut alive: Vec<Vec<u8>> = Vec::with_capacity(4_096);
        let before = stats().live_bytes;
        take_peak_live_bytes();
        profile::start(1);
        let large: Vec<u8> = black_box(Vec::with_capacity(512 * MIB as usize));
        for _ in 0..40_000 {
            let size = 16 << numbers.below(14);
            if alive.len() == 4_096 || numbers.below(3) == 0 && !alive.is_empty() {
                alive.swap_remove(numbers.below(alive.len()));
            }
            alive.push(Vec::with_capacity(size + numbers.below(size)));
        }
        let (live, peak) = (stats().live_bytes - before, take_peak_live_bytes() - before);
        let sites = profile::snapshot().sites.into_iter().filter(|site| site.source == Source::Arena);
        let (sampled_live, sampled_peak) =
            sites.fold((0, 0), |(live, peak), site| (live + site.live.bytes, peak + site.peak.bytes));
        assert!(sampled_live.abs_diff(live as u64) * 1_000 <= live as u64, "{sampled_live} sampled, {live} counted");
        assert!(sampled_peak.abs_diff(peak as u64) * 100 <= peak as u64, "{sampled_peak} sampled, {peak} counted");
        drop(large);
    });
}
