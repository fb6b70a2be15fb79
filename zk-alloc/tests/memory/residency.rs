//! The resident size in `stats()` must match the resident size of the region that the kernel reports, after all kinds of requests and
//! purges. The tests write whole blocks, because the arena can't know which bytes a program leaves untouched. Tests that depend on how
//! memory is faulted in run under each setting that affects this.
//!
//! With small pages, memory that the program does not touch must not be resident. A kernel with pages of more than 4 KiB purges, protects
//! and zeroes only whole pages. Blocks must keep their contents there too.

use std::env;
use std::hint::black_box;

use crate::heap::Heap;
use crate::support::blocks::{Block, KIB, MIB, RESIDENT, assert_costs_at_most, keep_every};
use crate::support::maps::{Region, map_of};
use crate::support::{BARE_METAL, Settings, alone, in_its_own_process, kernel_bytes, rss_bytes};
use crate::volume::{self, Volume};
use zk_alloc::{HugePagesOutcome, Retain, Scratch, SecretBuf, ZkAllocator, phase, release, reserve, set_retain, stats};

/// The settings that affect how memory is faulted in.
const EACH_SETTING: &[Settings] = &[
    &[],
    &[(BARE_METAL, "1")],
    &[(BARE_METAL, "1"), ("ZK_ALLOC_MAX_BYTES", "256M")],
    &[("ZK_ALLOC_THP", "always")],
    &[("ZK_ALLOC_THP", "never")],
    &[("ZK_ALLOC_MAX_BYTES", "256M")],
    &[("ZK_ALLOC_THP", "always"), ("ZK_ALLOC_LAZY_ZERO_BYTES", "16K")],
];

/// The kernel faults in the whole huge page that contains the end of a run.
#[test]
fn growth_into_a_huge_page_counts_the_whole_page() {
    alone!(each EACH_SETTING);
    let region = Region::new();
    let mut runs: Vec<_> = (0..80).map(|_| Block::written(&RESIDENT, 2 * MIB)).collect();
    keep_every(2, &mut runs);
    release();
    region.check("every other run was purged");
    for run in &mut runs {
        let size = 2 * MIB + 8 * KIB;
        let address = run.address();
        assert!(run.resize(size) && run.address() == address, "it grows in place");
        run.write(0, size);
    }
    region.check("runs grew by two pages each");
}

/// Runs `body` if the arena uses huge pages on this host and khugepaged makes more of them by itself.
fn where_the_kernel_makes_huge_pages(body: impl FnOnce()) {
    alone!(&[(BARE_METAL, "1")]);
    // Opens the arena. On a host without huge pages there is nothing to test.
    drop(Block::written(&RESIDENT, MIB));
    if stats().huge_pages == Some(HugePagesOutcome::Auto) {
        body();
    }
}

#[track_caller]
fn assert_huge(bytes: usize) {
    let in_huge_pages = kernel_bytes("self/smaps_rollup", "AnonHugePages");
    assert!(in_huge_pages >= bytes, "{in_huge_pages} bytes in huge pages");
}

/// Returns whether the end of a run of 9 MiB is in a mapping for huge pages.
fn end_is_huge(run: &Block) -> bool {
    map_of(run.address() + 9 * MIB - 1).is_some_and(|map| map.has("hg"))
}

/// Returns a run of 9 MiB, part of whose last huge page has been purged, and the block before it. That block fills the addresses where the
/// arena uses small pages, so the run is where it uses huge pages.
fn run_before_purged_memory() -> [Block; 2] {
    let [before, run] = [40 * MIB, 9 * MIB].map(|bytes| Block::written(&RESIDENT, bytes));
    release();
    assert!(!end_is_huge(&run), "a part of its last huge page was purged");
    [before, run]
}

/// Fills about 128 MiB with small blocks and runs, frees most of them, and returns the few that remain, which are far apart.
fn survivors() -> Vec<Block> {
    let small = (0..64 * KIB).map(|_| Block::written(&RESIDENT, KIB));
    let runs = (0..800).map(|_| Block::written(&RESIDENT, 80 * KIB));
    let mut all: Vec<_> = small.chain(runs).collect();
    let mut runs = all.split_off(64 * KIB);
    keep_every(1_500, &mut all);
    keep_every(20, &mut runs);
    all.append(&mut runs);
    all
}

/// Makes the kernel collapse memory into huge pages wherever the arena allows it. Fails if the region's resident size then exceeds
/// `at_rest` bytes by more than 1% and 2 MiB.
#[track_caller]
fn assert_stays_purged(region: &Region, at_rest: usize) {
    region.make_huge();
    let found = region.resident_bytes();
    assert!(found <= at_rest + at_rest / 100 + 2 * MIB, "{at_rest} bytes became {found}");
}

/// After a purge, khugepaged must not collapse the purged pages around live blocks into huge pages, which would make them resident again.
/// In the second process, the policy retains nothing, so memory is purged block by block as it is freed. In the third, new slabs are
/// between purged ones.
#[test]
fn khugepaged_does_not_bring_back_purged_memory() {
    where_the_kernel_makes_huge_pages(|| {
        let region = Region::new();
        let survivors = survivors();
        release();
        let at_rest = region.resident_bytes();
        assert_stays_purged(&region, at_rest);

        // Later requests get huge pages again, and `stats()` counts all of these pages.
        let more: Vec<_> = (0..16).map(|_| Block::written(&RESIDENT, 4 * MIB)).collect();
        assert_huge(48 * MIB);
        let others: Vec<_> = (0..100).map(|_| Block::written(&RESIDENT, 300 * KIB)).collect();
        region.make_huge();
        region.check("the kernel made all blocks huge that it may");
        drop((more, others));
        release();
        assert_stays_purged(&region, at_rest);
        drop(survivors);
    });
    where_the_kernel_makes_huge_pages(|| {
        set_retain(Retain::Never);
        phase(|| ());
        let region = Region::new();
        let survivors = survivors();
        assert_stays_purged(&region, region.resident_bytes());
        drop(survivors);
    });
    where_the_kernel_makes_huge_pages(|| {
        let mut blocks: Vec<_> = (0..64 * KIB).map(|_| Block::written(&RESIDENT, KIB)).collect();
        let region = Region::new();
        // Keeps one block in 40, which is one in every second or third slab of 16 KiB.
        keep_every(40, &mut blocks);
        release();
        let others: Vec<_> = (0..50_000).map(|_| Block::written(&RESIDENT, 700)).collect();
        assert_stays_purged(&region, region.resident_bytes());
        drop((blocks, others));
    });
}

/// A buffer must still have huge pages if no part of it was purged, or if the whole buffer was purged to zero it.
#[test]
fn a_buffer_that_is_not_purged_keeps_its_huge_pages() {
    alone!(&[(BARE_METAL, "1"), ("ZK_ALLOC_LAZY_ZERO_BYTES", "16M")]);
    let buffer = Block::written(&RESIDENT, 64 * MIB);
    let untouched = Block::untouched(&RESIDENT, 64 * MIB, 8);
    if stats().huge_pages != Some(HugePagesOutcome::Auto) {
        return;
    }
    drop(Block::written(&RESIDENT, 64 * MIB));
    release();
    untouched.write(0, untouched.size());
    drop(buffer);
    let zeroed = Block::zeroed(&RESIDENT, 64 * MIB);
    zeroed.write(0, zeroed.size());
    assert_huge(120 * MIB);
}

/// The run begins where the arena uses small pages and ends where it uses huge pages.
#[test]
fn a_long_run_has_huge_pages_again_after_a_purge() {
    where_the_kernel_makes_huge_pages(|| {
        for _ in 0..3 {
            let run = Block::written(&RESIDENT, 60 * MIB);
            assert_huge(40 * MIB);
            drop(run);
            release();
        }
    });
}

/// The last 2 MiB block of the run also contains memory that was purged, so it is a separate mapping in the kernel. The kernel moves only
/// one mapping per call.
#[test]
fn a_run_of_several_mappings_moves_without_a_copy() {
    where_the_kernel_makes_huge_pages(|| {
        let [before, run] = run_before_purged_memory();
        let behind = Block::written(&RESIDENT, 300 * KIB);
        let (address, refusals) = (run.address(), stats().refusals);
        let run = run.resized(64 * MIB).expect("memory");
        assert_ne!(run.address(), address, "it has to move, since {:#x} is taken", behind.address());
        assert_eq!(stats().refusals, refusals, "{}", stats());
        // Since Linux 6.17, one call moves several mappings, so a part might keep its old flags.
        assert!(end_is_huge(&run), "a part of the run kept its old flags");
        drop(before);
    });
}

/// A 2 MiB block may become a huge page again when all of it is resident. Here, a run grows into the purged part.
#[test]
fn a_block_that_is_resident_again_becomes_huge() {
    where_the_kernel_makes_huge_pages(|| {
        let [before, run] = run_before_purged_memory();
        let run = run.resized(16 * MIB).expect("memory");
        assert!(end_is_huge(&run), "its last block of 2 MiB is resident again");
        drop(before);
    });
}

/// Outside of phases, a run is purged when it is freed for the first time, because a program that does its work only once does not need the
/// memory again. If the memory is used a second time, it stays resident from then on.
#[test]
fn runs_are_purged_when_they_are_freed_for_the_first_time_only() {
    alone!(each EACH_SETTING);
    let region = Region::new();
    let use_memory = || drop((0..16).map(|_| Block::written(&RESIDENT, 4 * MIB)).collect::<Vec<_>>());
    use_memory();
    assert!(stats().resident_bytes < 8 * MIB, "{} bytes stayed resident", stats().resident_bytes);
    region.check("runs were purged");
    use_memory();
    let before = stats().fresh_bytes;
    (0..50).for_each(|_| use_memory());
    let (fresh, resident) = (stats().fresh_bytes - before, stats().resident_bytes);
    assert!(fresh <= 4 * MIB as u64 && resident >= 60 * MIB, "{fresh} bytes were fresh, {resident} are resident");
}

#[test]
fn memory_that_the_program_asks_to_retain_is_not_purged_when_it_is_freed() {
    alone!();
    let _live = Block::written(&RESIDENT, MIB);
    let stays = |how: &str| {
        drop(Block::written(&RESIDENT, 32 * MIB));
        assert!(stats().resident_bytes >= 32 * MIB, "{how}");
        release();
    };
    phase(|| stays("a phase is open"));
    set_retain(Retain::Always);
    stays("the policy retains all memory");
    set_retain(Retain::Bytes(40 * MIB));
    stays("the policy retains 40 MiB");
    set_retain(Retain::For(std::time::Duration::from_secs(60)));
    assert!(reserve(32 * MIB) >= 32 * MIB);
    stays("the memory was reserved");
}

const SMALL_PAGES: Settings = &[("ZK_ALLOC_THP", "never")];

/// Fails if RSS grew since `before` by much more than `pages` pages, the number that were written.
#[track_caller]
fn assert_costs_pages(pages: usize, before: usize) {
    let written = pages * 4 * KIB;
    assert_costs_at_most(written + written / 4 + 4 * MIB, before, &format!("after {pages} pages were written"));
}

#[test]
fn a_small_process_pays_for_little_more_than_it_uses() {
    const RUN_BYTES: usize = 768 * KIB;
    alone!(SMALL_PAGES);
    let before = rss_bytes();
    let _small = phase(|| black_box((0..4).map(|_| vec![1u8; RUN_BYTES]).collect::<Vec<_>>()));
    assert_costs_at_most(4 * RUN_BYTES + MIB, before, "with 4 runs");
}

/// A server's buffers are long enough for any message. Most messages are short, so only the written pages may use memory.
#[test]
fn buffers_that_are_hardly_written_are_not_prefaulted() {
    for (capacity, count) in [(24 * KIB, 10_000), (64 * KIB, 4_000), (9 * MIB / 4, 500), (48 * MIB, 20)] {
        in_its_own_process(SMALL_PAGES, || {
            let before = rss_bytes();
            let buffer = |_| {
                let mut buffer = Vec::with_capacity(capacity);
                buffer.push(1u8);
                black_box(buffer)
            };
            let buffers: Vec<_> = phase(|| (0..count).map(buffer).collect());
            assert_costs_pages(count, before);
            assert!(stats().live_bytes >= count * capacity, "the arena serves them");
            drop(buffers);
        });
    }
}

/// Resizes `count` vectors of `from` bytes to `to` bytes, keeping the first `kept` bytes. Only the first and the last of these bytes are
/// written, and no other page must become resident.
fn resized(kept: usize, from: usize, to: usize, count: usize) {
    let before = rss_bytes();
    let mut buffers: Vec<Vec<u8>> = phase(|| {
        let buffer = |index: usize| {
            // The vector's length is the whole buffer, so the arena has to preserve every byte.
            let mut buffer = black_box(vec![0u8; from]);
            buffer[0] = index as u8;
            buffer[kept - 1] = !index as u8;
            buffer
        };
        (0..count).map(buffer).collect()
    });
    phase(|| {
        for buffer in &mut buffers {
            buffer.truncate(kept);
            if to > from {
                buffer.reserve_exact(to - kept);
            } else {
                buffer.shrink_to(to);
            }
        }
        black_box(&mut buffers);
    });
    // Each vector touches two pages at its old and at its new place, because freed pages stay resident.
    assert_costs_pages(4 * count, before);
    for (buffer, index) in buffers.iter().zip(0usize..) {
        assert_eq!((buffer[0], buffer[kept - 1]), (index as u8, !index as u8));
        assert!(index % 50 > 0 || buffer[1..kept - 1].iter().all(|&byte| byte == 0));
    }
    assert!(stats().live_bytes >= count * to, "the arena serves them");
}

/// The first case grows vectors that must be copied, the second grows smaller vectors, and the third shrinks vectors.
#[test]
fn sparse_vectors_that_grow_or_shrink_stay_sparse() {
    let cases = [(700 << 10, 700 << 10, 3 << 20, 400), (100 << 10, 100 << 10, 200 << 10, 2_000)];
    for (kept, from, to, count) in cases.into_iter().chain([(30 << 20, 100 << 20, 30 << 20, 20)]) {
        in_its_own_process(SMALL_PAGES, || resized(kept, from, to, count));
    }
}

/// The variable that makes a debug build of the allocator simulate a kernel with pages of this size. Other builds ignore it.
const PAGES: &str = "ZK_ALLOC_TEST_PAGE_BYTES";
const USUAL: &str = "4096";
/// The page sizes of aarch64 servers, and the usual one, with and without huge pages.
const PAGE_SIZES: &[Settings] = &[
    &[(PAGES, USUAL), ("ZK_ALLOC_THP", "auto")],
    &[(PAGES, USUAL), ("ZK_ALLOC_THP", "never")],
    &[(PAGES, "16384"), ("ZK_ALLOC_THP", "auto")],
    &[(PAGES, "16384"), ("ZK_ALLOC_THP", "never")],
    &[(PAGES, "65536"), ("ZK_ALLOC_THP", "auto")],
    &[(PAGES, "65536"), ("ZK_ALLOC_THP", "never")],
];

/// The arena must not purge a kernel page that a live block shares with a freed one. The allocator under test is also the global allocator,
/// so the model, the threads and their locals use its memory too.
#[test]
fn volume_with_pages_of_every_size_agrees_with_the_model() {
    alone!(each PAGE_SIZES);
    let is_usual = env::var(PAGES).is_ok_and(|page_bytes| page_bytes == USUAL);
    let ops = if is_usual { 500_000 } else { 60_000 };
    let volume = Volume { seed: 5, ops, ops_per_life: 5_000, ops_per_settling: 500, at_rest: None };
    volume::run(Box::leak(Box::new(Heap::new(ZkAllocator::resident(), true))), volume);
    volume::run(Box::leak(Box::new(Heap::new(ZkAllocator, true))), volume);
}

/// A `SecretBuf` or `Scratch` must have the requested length, whether or not it is a multiple of the page size.
#[test]
fn secrets_and_scratches_work_with_pages_of_every_size() {
    alone!(each PAGE_SIZES);
    assert_eq!(SecretBuf::zeroed(0).len(), 0);
    for bytes in [1, 31, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1, 64 * KIB, 70_000, 3 * MIB + 1] {
        let mut secret = SecretBuf::zeroed(bytes);
        assert!(secret.len() == bytes && secret.iter().all(|&byte| byte == 0));
        secret.fill(0xA5);
        let copy = SecretBuf::from_slice(&secret);
        assert!(copy.len() == bytes && copy.iter().all(|&byte| byte == 0xA5));
        assert!(copy.as_ptr().addr().is_multiple_of(4 * KIB));
        let mut scratch = Scratch::with_capacity(bytes);
        let page_bytes: usize = env::var(PAGES).expect("set by the parent").parse().expect("a number");
        // The capacity is a multiple of the simulated page size, which shows that the variable took effect.
        let is_whole = scratch.capacity_bytes().is_multiple_of(page_bytes);
        assert!(is_whole || !cfg!(debug_assertions), "{} bytes in pages of {page_bytes}", scratch.capacity_bytes());
        for round in 0..3 {
            let words = scratch.alloc_array(bytes.div_ceil(16), |i| (i as u64) ^ round);
            assert!(words.iter().zip(0..).all(|(&word, i)| word == i ^ round));
            if round == 0 { scratch.reset() } else { scratch.release() }
        }
    }
}
