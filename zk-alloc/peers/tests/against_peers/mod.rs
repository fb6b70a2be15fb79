//! The same program under zk-alloc and under its peers, each in a process of its own, which reports its cost in RSS.

use std::alloc::System;

use mimalloc::MiMalloc;
use snmalloc_rs::SnMalloc;
use tikv_jemallocator::Jemalloc;
use zk_alloc::{ZkAllocator, phase};

use crate::support::blocks::{Allocator, MIB, RESIDENT};
use crate::support::{Ended, child, is_alone};

/// The cost that an allocator may have beyond its share of the best peer's figure: for tables, and because the kernel's
/// figure lags.
const SLACK_BYTES: usize = 2 * MIB;

static SCOPED: ZkAllocator = ZkAllocator;

/// An allocator, and a function that runs a program under it.
struct Arm {
    name: &'static str,
    is_ours: bool,
    run: fn(Program) -> usize,
}

/// A program that runs under each allocator. It returns its cost in bytes of RSS.
type Program<'a> = &'a dyn Fn(Allocator) -> usize;

const ARMS: [Arm; 6] = [
    Arm { name: "zk-alloc", is_ours: true, run: |program| phase(|| program(&SCOPED)) },
    Arm { name: "zk-alloc-resident", is_ours: true, run: |program| program(&RESIDENT) },
    Arm { name: "system", is_ours: false, run: |program| program(&System) },
    Arm { name: "jemalloc", is_ours: false, run: |program| program(&Jemalloc) },
    Arm { name: "mimalloc", is_ours: false, run: |program| program(&MiMalloc) },
    Arm { name: "snmalloc", is_ours: false, run: |program| program(&SnMalloc) },
];

/// Runs `program` under each allocator. Asserts that zk-alloc costs at most 1.25 of the best peer, plus [`SLACK_BYTES`].
#[track_caller]
pub(crate) fn against_peers(program: impl Fn(Allocator) -> usize) {
    let cost = |arm: &Arm| child(&[], || println!("cost {}", (arm.run)(&program)));
    let ended = ARMS.iter().map(cost).collect::<Vec<_>>();
    if is_alone() {
        return;
    }
    ended.iter().flatten().for_each(Ended::assert_passed);
    let cost = |ended: &Ended| ended.printed("cost ").parse().expect("a number");
    let costs: Vec<(_, usize)> = ARMS.iter().zip(ended.iter().flatten().map(cost)).collect();
    let best = costs.iter().filter(|(arm, _)| !arm.is_ours).map(|&(_, cost)| cost).min().expect("peers");
    let bound = best + best / 4 + SLACK_BYTES;
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / MIB as f64);
    let table: Vec<_> = costs.iter().map(|(arm, cost)| format!("{} {}", arm.name, mib(*cost))).collect();
    println!("{}; at most {}", table.join(", "), mib(bound));
    for (arm, cost) in costs.iter().filter(|(arm, _)| arm.is_ours) {
        assert!(*cost <= bound, "{} cost {}, more than {}: {}", arm.name, mib(*cost), mib(bound), table.join(", "));
    }
}
