//! The volume under the settings that change how the arena faults in, zeroes and purges memory.
//! Whenever all threads wait, resident memory must match the kernel's account.
//!
//! Settings are read once per process, so each test runs in a process of its own. `ZK_ALLOC_SOAK_OPS` (each of these
//! tests runs a hundredth of it) and `ZK_ALLOC_SOAK_SEED` are as in main.rs.

use std::alloc::Layout;
use std::env;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crate::heap::{Block, Heap};
use crate::number;
use crate::support::blocks::MIB;
use crate::support::maps::{resident_bytes_around, tolerance_bytes};
use crate::support::{BARE_METAL, Ended, Settings, child_as};
use crate::volume::{self, AtRest, Volume};
use zk_alloc::{ZkAllocator, release, stats};

const SOAK: [&str; 2] = ["ZK_ALLOC_SOAK_OPS", "ZK_ALLOC_SOAK_SEED"];

fn volume(at_rest: Option<AtRest>) -> Volume {
    let ops = number(SOAK[0], 10_000_000) / 100;
    Volume { seed: number(SOAK[1], 1), ops, threads: 4, ops_per_life: 5_000, ops_per_settling: 1000, at_rest }
}

fn in_and_out_of_phases_and_resident(at_rest: Option<AtRest>) {
    // From here on, blocks that were hardly written to leave nothing in the account.
    release();
    for allocator in [ZkAllocator, ZkAllocator::resident()] {
        let heap = Heap::new(allocator, true);
        let heap = if at_rest.is_some() { heap.written_whole() } else { heap };
        volume::run(Box::leak(Box::new(heap)), volume(at_rest));
    }
}

/// The address of a block that marks the region, and the region's size when that block was made.
fn region() -> (usize, usize) {
    static REGION: OnceLock<(Block, usize)> = OnceLock::new();
    let (block, reserved_bytes) = REGION.get_or_init(|| {
        let heap = Heap::new(ZkAllocator::resident(), false);
        let block = heap.alloc(Layout::from_size_align(MIB, 8).expect("a small layout"), true).expect("memory");
        (block, stats().address_space_bytes)
    });
    (block.address(), *reserved_bytes)
}

/// Compares the resident size of `stats()` with the kernel's. A retention policy may act in the background thread
/// between the two calls, so this tries again.
fn resident_bytes_are_the_kernel_s() {
    let (address, reserved_bytes) = region();
    let mut asked = 0;
    loop {
        let said = stats().resident_bytes;
        let found = resident_bytes_around(address, reserved_bytes);
        if said.abs_diff(found) <= tolerance_bytes(found) {
            return;
        }
        asked += 1;
        assert!(asked < 20, "stats() says {said} bytes are resident, the kernel says {found}\n{}", stats());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Resident memory must stay within the cap, and match the kernel's account.
fn resident_bytes_are_within_the_cap() {
    assert!(stats().resident_bytes <= 256 * MIB, "{}", stats());
    resident_bytes_are_the_kernel_s();
}

/// Runs the volume in a process of its own for each list of settings. Then it runs again, and `check` runs while all threads wait.
#[track_caller]
fn volume_under(all_settings: &[Settings], check: fn()) {
    for settings in all_settings {
        let soak = SOAK.into_iter().filter_map(|name| Some((name, env::var_os(name)?)));
        let ended = child_as(
            settings,
            |command| _ = command.envs(soak),
            || {
                region();
                in_and_out_of_phases_and_resident(None);
                in_and_out_of_phases_and_resident(Some(AtRest { every_ops: 1_000, check }));
            },
        );
        ended.iter().for_each(Ended::assert_passed);
    }
}

/// Also on a host where `auto` uses huge pages.
#[test]
fn volume_in_pages_of_each_kind() {
    let pages: [Settings; 4] = [&[], &[(BARE_METAL, "1")], &[("ZK_ALLOC_THP", "always")], &[("ZK_ALLOC_THP", "never")]];
    volume_under(&pages, resident_bytes_are_the_kernel_s);
}

#[test]
fn volume_within_a_cap() {
    let cap = ("ZK_ALLOC_MAX_BYTES", "256M");
    volume_under(&[&[cap], &[(BARE_METAL, "1"), cap]], resident_bytes_are_within_the_cap);
}

#[test]
fn volume_zeroed_by_purging() {
    let lazy = ("ZK_ALLOC_LAZY_ZERO_BYTES", "16K");
    let settings: [Settings; 2] = [&[lazy, ("ZK_ALLOC_THP", "always")], &[lazy, ("ZK_ALLOC_THP", "never")]];
    volume_under(&settings, resident_bytes_are_the_kernel_s);
}
