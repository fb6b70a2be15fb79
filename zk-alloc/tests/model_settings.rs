//! The volume of tests/model.rs under the settings that change how memory is paged in, zeroed and given back; and what is
//! resident held to the kernel's account whenever all threads wait.
//!
//! Settings are read once in the life of a process, so each test runs in one of its own. `ZK_ALLOC_SOAK_OPS` (of which each
//! of these does a hundredth) and `ZK_ALLOC_SOAK_SEED` are as in tests/model.rs.
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
    // What blocks that were hardly written to left is of no account from here on.
    release();
    for allocator in [ZkAllocator, ZkAllocator::resident()] {
        let heap = Heap::new(allocator, true);
        let heap = if at_rest.is_some() { heap.written_whole() } else { heap };
        volume::run(Box::leak(Box::new(heap)), volume(at_rest));
    }
}

/// A block of the region, by which the region is found; with how much was reserved when it was made.
fn region() -> (usize, usize) {
    static REGION: OnceLock<(Block, usize)> = OnceLock::new();
    let (block, reserved_bytes) = REGION.get_or_init(|| {
        let heap = Heap::new(ZkAllocator::resident(), false);
        let block = heap.alloc(Layout::from_size_align(MIB, 8).expect("a small layout"), true).expect("memory");
        (block, stats().address_space_bytes)
    });
    (block.address(), *reserved_bytes)
}

/// What `stats()` says is resident, and what the kernel says. A policy of retention may act in a thread of the arena's
/// meanwhile: then both are asked once more.
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

/// With room of its own for what must not be resident beyond it.
fn resident_bytes_are_within_the_cap() {
    assert!(stats().resident_bytes <= 256 * MIB, "{}", stats());
    resident_bytes_are_the_kernel_s();
}

/// Has `check` look while all wait.
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

/// As above, where `auto` asks for huge pages.
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

/// Contents only, and most blocks hardly touched, as what is zeroed by giving it back should be.
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
