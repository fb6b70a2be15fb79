//! Runs random programs and checks them against a model: live blocks do not overlap, zeroed memory is zero, and contents do not change.
//!
//! proptest generates small programs and shrinks those that fail. The volume tests run many random operations on several threads.
//! `ZK_ALLOC_SOAK_OPS` sets the number of operations (10 million by default), and `ZK_ALLOC_SOAK_SEED` the seed.

use std::env;

use proptest::prelude::*;
use zk_alloc::ZkAllocator;

mod heap;
mod program;
#[path = "../support/mod.rs"]
mod support;
mod volume;

use heap::Heap;
use program::{OP_BYTES, Op};
use volume::Volume;

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_agree_with_the_model(
        is_resident in any::<bool>(),
        ops in prop::collection::vec(any::<[u8; OP_BYTES]>().prop_map(Op::decode), 1..100),
    ) {
        let allocator = if is_resident { ZkAllocator::resident() } else { ZkAllocator };
        program::run(&Heap::new(allocator, true), &ops);
    }
}

fn number(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(text) => text.replace('_', "").parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// Makes two runs on four threads, each with a quarter of `ZK_ALLOC_SOAK_OPS` operations. The first also checks that blocks do not overlap,
/// for which each call takes a lock. The second takes no lock, so the threads run unsynchronised.
fn run_volumes(allocator: fn() -> ZkAllocator, seed: u64) {
    for (tracks_intervals, part) in [(true, 0), (false, 1)] {
        let heap = Box::leak(Box::new(Heap::new(allocator(), tracks_intervals)));
        let volume = Volume {
            seed: number("ZK_ALLOC_SOAK_SEED", 1) + seed + part,
            ops: number("ZK_ALLOC_SOAK_OPS", 10_000_000) / 4,
            ops_per_life: 20_000,
            ops_per_settling: 10_000,
            at_rest: None,
        };
        volume::run(heap, volume);
    }
}

#[test]
fn volume_in_and_out_of_phases_agrees_with_the_model() {
    run_volumes(|| ZkAllocator, 0);
}

#[test]
fn volume_of_a_resident_allocator_agrees_with_the_model() {
    run_volumes(ZkAllocator::resident, 2);
}

/// Runs the volume tests under the settings that affect how the arena faults in, zeroes and purges memory. At every check, while all
/// threads wait, the resident size must match the kernel's counters.
///
/// Settings are read once per process, so each list of settings gets a process of its own. `ZK_ALLOC_SOAK_OPS` and `ZK_ALLOC_SOAK_SEED`
/// work as above, but each run here makes a two-hundredth of the operations.
#[cfg(target_os = "linux")]
mod settings {
    use std::env;
    use std::process::Command;
    use std::sync::LazyLock;

    use crate::heap::Heap;
    use crate::number;
    use crate::support::blocks::MIB;
    use crate::support::maps::Region;
    use crate::support::{BARE_METAL, Ended, Settings, child_as};
    use crate::volume::{self, Volume};
    use zk_alloc::{ZkAllocator, release, stats};

    const SOAK: [&str; 2] = ["ZK_ALLOC_SOAK_OPS", "ZK_ALLOC_SOAK_SEED"];

    fn in_and_out_of_phases_and_resident(at_rest: Option<fn()>) {
        let ops = number(SOAK[0], 10_000_000) / 200;
        let volume = Volume { seed: number(SOAK[1], 1), ops, ops_per_life: 5_000, ops_per_settling: 1000, at_rest };
        // Purges the memory of earlier blocks, which were not written whole, so the kernel may count less of it as resident than the arena.
        release();
        for allocator in [ZkAllocator, ZkAllocator::resident()] {
            let heap = Heap::new(allocator, true);
            let heap = if at_rest.is_some() { heap.written_whole() } else { heap };
            volume::run(Box::leak(Box::new(heap)), volume);
        }
    }

    static REGION: LazyLock<Region> = LazyLock::new(Region::new);

    const CAP: (&str, &str) = ("ZK_ALLOC_MAX_BYTES", "256M");

    /// Checks that the resident size matches the kernel's counters and does not exceed the cap, if there is one.
    fn check_resident_bytes() {
        assert!(env::var_os(CAP.0).is_none() || stats().resident_bytes <= 256 * MIB, "{}", stats());
        REGION.check("all threads met");
    }

    /// For each list of settings, runs the volume tests in a process of its own, first without and then with checks of the resident size.
    /// With [`BARE_METAL`], `auto` uses huge pages, as on a host that does not report free memory to a hypervisor.
    #[test]
    fn volume_under_each_setting_agrees_with_the_model_and_the_kernel() {
        let [always, never] = ["always", "never"].map(|pages| ("ZK_ALLOC_THP", pages));
        let (lazy, bare) = (("ZK_ALLOC_LAZY_ZERO_BYTES", "16K"), (BARE_METAL, "1"));
        let all: [Settings; 8] =
            [&[], &[bare], &[always], &[never], &[lazy, always], &[lazy, never], &[CAP], &[bare, CAP]];
        for settings in all {
            let soak = SOAK.into_iter().filter_map(|name| Some((name, env::var_os(name)?)));
            let set = |command: &mut Command| _ = command.envs(soak);
            let ended = child_as(settings, set, || {
                // Allocates the block in the region now, before the cap is reached.
                LazyLock::force(&REGION);
                in_and_out_of_phases_and_resident(None);
                in_and_out_of_phases_and_resident(Some(check_resident_bytes));
            });
            ended.iter().for_each(Ended::assert_passed);
        }
    }
}
