//! The volume of tests/model.rs under the settings that change how the arena faults in, zeroes and purges memory.
//! Whenever all threads wait, resident memory must match the kernel's account.
//!
//! Settings are read once per process, so each test runs in a process of its own. `ZK_ALLOC_SOAK_OPS` (each of these
//! tests runs a hundredth of it) and `ZK_ALLOC_SOAK_SEED` are as in tests/model.rs.
#![cfg(target_os = "linux")]

#[path = "model/heap.rs"]
mod heap;
#[path = "model/lock.rs"]
mod lock;
#[path = "support/maps.rs"]
mod maps;
#[path = "model/meeting.rs"]
mod meeting;
mod support;
#[path = "model/volume.rs"]
mod volume;

use std::alloc::Layout;
use std::env;
use std::ffi::OsString;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use heap::{Block, Heap};
use maps::{resident_bytes_around, tolerance_bytes};
use support::{BARE_METAL, alone, is_alone};
use volume::{AtRest, Volume};
use zk_alloc::{ZkAllocator, release, stats};

const MIB: usize = 1 << 20;
const SOAK: [&str; 2] = ["ZK_ALLOC_SOAK_OPS", "ZK_ALLOC_SOAK_SEED"];

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.replace('_', "").parse().expect("a number"))
}

/// Runs `body`, which is the test `name`, in a process of its own.
#[track_caller]
fn under(name: &str, settings: &[(&'static str, &str)], body: impl FnOnce()) {
    if is_alone() {
        return body();
    }
    let soak = SOAK.into_iter().filter_map(|name| Some((name, env::var_os(name)?)));
    let settings: Vec<_> = settings.iter().map(|&(name, value)| (name, OsString::from(value))).chain(soak).collect();
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
    alone(name, &settings).assert_passed(&format!("{settings:?}"));
}

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

/// Has `check` run while all threads wait.
fn held_to(check: fn()) -> Option<AtRest> {
    Some(AtRest { every_ops: 1_000, check })
}

#[test]
fn volume_with_what_is_resident_held_to_the_kernel() {
    under("volume_with_what_is_resident_held_to_the_kernel", &[], || {
        region();
        in_and_out_of_phases_and_resident(held_to(resident_bytes_are_the_kernel_s));
    });
}

#[test]
fn volume_within_a_cap() {
    under("volume_within_a_cap", &[("ZK_ALLOC_MAX_BYTES", "256M")], || {
        region();
        in_and_out_of_phases_and_resident(None);
        in_and_out_of_phases_and_resident(held_to(resident_bytes_are_within_the_cap));
    });
}

/// As above, on a host where `auto` uses huge pages.
#[test]
fn volume_on_bare_metal() {
    under("volume_on_bare_metal", &[(BARE_METAL, "1"), ("ZK_ALLOC_MAX_BYTES", "256M")], || {
        region();
        in_and_out_of_phases_and_resident(held_to(resident_bytes_are_within_the_cap));
    });
}

#[test]
fn volume_in_huge_pages() {
    under("volume_in_huge_pages", &[("ZK_ALLOC_THP", "always")], || {
        region();
        in_and_out_of_phases_and_resident(None);
        in_and_out_of_phases_and_resident(held_to(resident_bytes_are_the_kernel_s));
    });
}

#[test]
fn volume_in_small_pages() {
    under("volume_in_small_pages", &[("ZK_ALLOC_THP", "never")], || {
        region();
        in_and_out_of_phases_and_resident(None);
        in_and_out_of_phases_and_resident(held_to(resident_bytes_are_the_kernel_s));
    });
}

/// Checks contents only. Most blocks are hardly touched, which suits buffers that a purge zeroes.
#[test]
fn volume_zeroed_by_giving_back() {
    let settings = [("ZK_ALLOC_LAZY_ZERO_BYTES", "16K"), ("ZK_ALLOC_THP", "always")];
    under("volume_zeroed_by_giving_back", &settings, || in_and_out_of_phases_and_resident(None));
}

#[test]
fn volume_zeroed_by_giving_back_small_pages() {
    let settings = [("ZK_ALLOC_LAZY_ZERO_BYTES", "16K"), ("ZK_ALLOC_THP", "never")];
    under("volume_zeroed_by_giving_back_small_pages", &settings, || {
        region();
        in_and_out_of_phases_and_resident(None);
        in_and_out_of_phases_and_resident(held_to(resident_bytes_are_the_kernel_s));
    });
}

#[test]
fn volume_from_the_first_byte_on() {
    under("volume_from_the_first_byte_on", &[("ZK_ALLOC_MIN_BYTES", "0")], || in_and_out_of_phases_and_resident(None));
}
