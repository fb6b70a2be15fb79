//! The peak of a profile has what was alive at one moment, also where several threads change it.
#![cfg(all(feature = "profile", target_os = "linux"))]

mod support;

use std::hint::black_box;
use std::sync::Barrier;

use support::in_its_own_process;
use zk_alloc::ZkAllocator;
use zk_alloc::profile;

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
    in_its_own_process("the_peak_has_what_threads_free_while_it_is_noted", &[("ZK_ALLOC_PROFILE", "0")], || {
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
