//! The requests of programs: functions that know a [`Heap`] and nothing about the arms.
//!
//! One run of a pattern takes 50 to 500 ms, and makes the same requests in each run of a seed. It also writes to its
//! memory. The patterns of mimalloc-bench write lightly, as they do there; those of provers and of long lives write all
//! of it.

mod cache;
mod growth;
mod lifetimes;
mod prover;
mod server;
mod threads;

use crate::heap::{Block, Heap};

/// The parameters of a run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Threads of patterns without a fixed number.
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    /// A hundredth of the work, to check that the pattern runs.
    pub(crate) tiny: bool,
}

impl Plan {
    /// This amount of work, or a hundredth of it.
    fn work(&self, amount: usize) -> usize {
        if self.tiny { (amount / 100).max(2) } else { amount }
    }
}

/// Sizes that the report lists separately, because an allocator may leave small ones to another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// 1 KiB and more.
    Large,
    /// Below 1 KiB.
    Small,
}

pub(crate) struct Pattern {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// A line for `--list`.
    pub(crate) what: &'static str,
    pub(crate) run: fn(Heap, &Plan),
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const fn large(name: &'static str, run: fn(Heap, &Plan), what: &'static str) -> Pattern {
    Pattern { name, group: Group::Large, what, run }
}

const fn small(name: &'static str, run: fn(Heap, &Plan), what: &'static str) -> Pattern {
    Pattern { name, group: Group::Small, what, run }
}

pub(crate) static PATTERNS: &[Pattern] = &[
    large("larson", server::larson, "threads replace random blocks of 1 to 32 KiB and hand them to a successor"),
    large("xmalloc", server::xmalloc, "threads allocate 1 to 32 KiB, other threads free"),
    large("mstress", server::mstress, "threads exchange blocks of 1 KiB to 1 MiB, and keep half of them for long"),
    large("rptest", server::rptest, "random sizes of 1 to 16 KiB, half of them freed by another thread"),
    large("cache-scratch", cache::scratch, "threads start from 1,040 bytes that lay side by side, and write their own"),
    large("cache-thrash", cache::thrash, "threads write 1,040 bytes of their own"),
    large("ago-1k", |heap, plan| server::ago(heap, plan, KIB), "1 KiB, freed four allocations later"),
    large("ago-4k", |heap, plan| server::ago(heap, plan, 4 * KIB), "4 KiB, freed four allocations later"),
    large("ago-16k", |heap, plan| server::ago(heap, plan, 16 * KIB), "16 KiB, freed four allocations later"),
    large("lifetimes", lifetimes::random, "1 to 32 KiB with random lifetimes, about 64 MiB alive"),
    large("survivors", lifetimes::survivors, "64 MiB of 1 to 4 KiB, a tenth of which stays, six times"),
    large("burst-1k", lifetimes::burst_1k, "bursts of 400 blocks of 1 to 2 KiB, one of which stays"),
    large("burst-24k", lifetimes::burst_24k, "bursts of 16 blocks of 24 to 32 KiB, one of which stays"),
    large(
        "survivors-16k-4k",
        lifetimes::survivors_16k_4k,
        "16 KiB, an eighth of which stays, then 4 KiB on a new thread",
    ),
    large("survivors-2k-3000", lifetimes::survivors_2k_3000, "2 KiB, a sixteenth of which stays, then 3,000 bytes"),
    large("phases-64", lifetimes::phases, "16 phases of 32 MiB of one size each, a 64th of which stays"),
    large("runs-random", lifetimes::runs_random, "12,000 runs of 33 to 200 KiB, a random one replaced each time"),
    large("thread-churn", threads::churn, "many short threads, half of whose blocks outlive them"),
    large("thread-idle", threads::idle, "1,000 threads that use 1 KiB once and wait"),
    large("grow-push", growth::push, "a vector grown by pushing, to 256 MiB"),
    large("grow-exact", growth::exact, "a vector grown by exact steps of 4 MiB, to 180 MiB"),
    large("aligned", growth::aligned, "500 blocks of 2 KiB at multiples of 32 KiB"),
    large("holes", growth::holes, "200 KiB above 20,000 holes of 33 KiB"),
    large("fft-8m", |heap, plan| prover::fft(heap, plan, 8 * MIB), "a buffer of 8 MiB filled again and again"),
    large("fft-32m", |heap, plan| prover::fft(heap, plan, 32 * MIB), "a buffer of 32 MiB filled again and again"),
    large("fft-128m", |heap, plan| prover::fft(heap, plan, 128 * MIB), "a buffer of 128 MiB filled again and again"),
    large("zeroed", prover::zeroed, "bursts of 24 zeroed buffers of 256 KiB to 16 MiB, a word of each touched"),
    large("msm", prover::msm, "16 bucket arrays of 6 MiB filled again and again"),
    large("threads-1", |heap, plan| prover::threads(heap, plan, 1), "64 MiB filled on one thread"),
    large("threads-4", |heap, plan| prover::threads(heap, plan, 4), "64 MiB filled on each of 4 threads"),
    large("threads-16", |heap, plan| prover::threads(heap, plan, 16), "64 MiB filled on each of 16 threads"),
    small("larson-small", server::larson_small, "larson with 16 to 1,024 bytes"),
    small("xmalloc-small", server::xmalloc_small, "xmalloc with 16 to 1,024 bytes"),
    small("rptest-small", server::rptest_small, "rptest with 16 to 1,024 bytes"),
    small("cache-scratch-small", cache::scratch_small, "cache-scratch with 16 bytes"),
    small("cache-thrash-small", cache::thrash_small, "cache-thrash with 16 bytes"),
    small("ago-64", |heap, plan| server::ago(heap, plan, 64), "64 bytes, freed four allocations later"),
];

/// Frees the block in the place, then fills the place: a program that replaces a block needs no memory for both.
fn replace(place: &mut Option<Block>, new: impl FnOnce() -> Block) {
    *place = None;
    *place = Some(new());
}
