//! The volume under the settings that change how the arena faults in, zeroes and purges memory.
//! Whenever all threads wait, resident memory must match the kernel's account.
//!
//! Settings are read once per process, so each test runs in a process of its own. `ZK_ALLOC_SOAK_OPS` (each of these
//! tests runs a two-hundredth of it) and `ZK_ALLOC_SOAK_SEED` are as in main.rs.

use std::env;
use std::sync::LazyLock;

use crate::heap::Heap;
use crate::number;
use crate::support::blocks::MIB;
use crate::support::maps::Region;
use crate::support::{BARE_METAL, Ended, Settings, child_as};
use crate::volume::{self, AtRest, Volume};
use zk_alloc::{ZkAllocator, release, stats};

const SOAK: [&str; 2] = ["ZK_ALLOC_SOAK_OPS", "ZK_ALLOC_SOAK_SEED"];

fn volume(at_rest: Option<AtRest>) -> Volume {
    let ops = number(SOAK[0], 10_000_000) / 200;
    Volume { seed: number(SOAK[1], 1), ops, threads: 4, ops_per_life: 5_000, ops_per_settling: 1000, at_rest }
}

fn in_and_out_of_phases_and_resident(at_rest: Option<AtRest>) {
    // Purges what earlier blocks left resident. Blocks that were hardly written to would count otherwise.
    release();
    for allocator in [ZkAllocator, ZkAllocator::resident()] {
        let heap = Heap::new(allocator, true);
        let heap = if at_rest.is_some() { heap.written_whole() } else { heap };
        volume::run(Box::leak(Box::new(heap)), volume(at_rest));
    }
}

static REGION: LazyLock<Region> = LazyLock::new(Region::new);

fn resident_bytes_are_the_kernel_s() {
    REGION.check("all threads met");
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
                // Before the memory is full.
                LazyLock::force(&REGION);
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
