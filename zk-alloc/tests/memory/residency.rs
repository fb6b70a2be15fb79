//! The resident size in `stats()` matches the kernel's for the region, for all requests and all kinds of purges. Blocks
//! are written whole here, because the arena can't know which bytes a program leaves untouched.
//!
//! Each test runs under each setting that changes how memory is faulted in.

use crate::support::blocks::{Block, KIB, MIB, RESIDENT, keep_every};
use crate::support::maps::{Region, map_of};
use crate::support::{BARE_METAL, Numbers, Settings, alone, huge_page_bytes};
use zk_alloc::{HugePagesOutcome, Retain, phase, release, reserve, set_retain, stats};

/// The settings that change how memory is faulted in.
const EACH_SETTING: &[Settings] = &[
    &[],
    &[(BARE_METAL, "1")],
    &[(BARE_METAL, "1"), ("ZK_ALLOC_MAX_BYTES", "256M")],
    &[("ZK_ALLOC_THP", "always")],
    &[("ZK_ALLOC_THP", "never")],
    &[("ZK_ALLOC_MAX_BYTES", "256M")],
    &[("ZK_ALLOC_THP", "always"), ("ZK_ALLOC_LAZY_ZERO_BYTES", "16K")],
];

/// The kernel faults in the whole huge page that holds the end of a run.
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
        assert!(run.resize(size) && run.address() == address, "it grows where it stands");
        run.write(0, size);
    }
    region.check("runs grew by two pages each");
}

/// Runs `body` if the arena uses huge pages on this host, where khugepaged makes more of them by itself.
fn where_the_kernel_makes_huge_pages(body: impl FnOnce()) {
    alone!(&[(BARE_METAL, "1")]);
    // Opens the arena. A host without huge pages has nothing to test.
    drop(Block::written(&RESIDENT, MIB));
    if stats().huge_pages == Some(HugePagesOutcome::Auto) {
        body();
    }
}

/// Whether the end of a run of 9 MiB is in a mapping for huge pages.
fn end_is_huge(run: &Block) -> bool {
    map_of(run.address() + 9 * MIB - 1).is_some_and(|map| map.has("hg"))
}

/// A run of 9 MiB of whose last huge page a part was purged. The block before it fills the room for small pages, where a test would show nothing.
fn run_before_purged_memory() -> [Block; 2] {
    let [before, run] = [40 * MIB, 9 * MIB].map(|bytes| Block::written(&RESIDENT, bytes));
    release();
    assert!(!end_is_huge(&run), "a part of its last block went back");
    [before, run]
}

/// Blocks that lie far apart, in slabs and in runs, left of 128 MiB.
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

/// Lets the kernel make huge pages where it may, and fails if that makes more than a little memory resident. `at_rest` bytes were resident before.
#[track_caller]
fn assert_stays_purged(region: &Region, at_rest: usize) {
    region.make_huge();
    let found = region.resident_bytes();
    assert!(found <= at_rest + at_rest / 100 + 2 * MIB, "{at_rest} bytes became {found}");
}

/// khugepaged must not fill the purged pages around live blocks, which it may try minutes after a purge.
#[test]
fn khugepaged_does_not_bring_back_purged_memory() {
    where_the_kernel_makes_huge_pages(|| {
        let region = Region::new();
        let survivors = survivors();
        release();
        let at_rest = region.resident_bytes();
        assert_stays_purged(&region, at_rest);

        // Later requests get huge pages again, and the arena counts them all.
        let more: Vec<_> = (0..16).map(|_| Block::written(&RESIDENT, 4 * MIB)).collect();
        assert!(huge_page_bytes() >= 48 * MIB, "{} bytes in huge pages", huge_page_bytes());
        let others: Vec<_> = (0..100).map(|_| Block::written(&RESIDENT, 300 * KIB)).collect();
        region.make_huge();
        region.check("the kernel made huge pages of what it may");
        drop((more, others));
        release();
        assert_stays_purged(&region, at_rest);
        drop(survivors);
    });
}

/// Nor does khugepaged fill memory that is purged at once, block by block, when the policy retains nothing.
#[test]
fn khugepaged_does_not_bring_back_freed_memory_if_nothing_is_retained() {
    where_the_kernel_makes_huge_pages(|| {
        set_retain(Retain::Never);
        phase(|| ());
        let region = Region::new();
        let survivors = survivors();
        assert_stays_purged(&region, region.resident_bytes());
        drop(survivors);
    });
}

/// A buffer that was not purged in part still gets huge pages, even after a purge has zeroed it.
#[test]
fn a_buffer_that_is_not_purged_keeps_its_huge_pages() {
    let settings = [(BARE_METAL, "1"), ("ZK_ALLOC_LAZY_ZERO_BYTES", "16M")];
    alone!(&settings);
    let buffer = Block::written(&RESIDENT, 64 * MIB);
    let untouched = Block::untouched(&RESIDENT, 64 * MIB, 8);
    if stats().huge_pages != Some(HugePagesOutcome::Auto) {
        return;
    }
    let other = Block::written(&RESIDENT, 64 * MIB);
    drop(other);
    release();
    untouched.write(0, untouched.size());
    drop(buffer);
    let zeroed = Block::zeroed(&RESIDENT, 64 * MIB);
    zeroed.write(0, zeroed.size());
    assert!(huge_page_bytes() >= 120 * MIB, "{} bytes in huge pages", huge_page_bytes());
}

/// A run that begins where the arena uses small pages, and ends where it uses huge ones.
#[test]
fn a_long_run_has_huge_pages_again_after_a_purge() {
    where_the_kernel_makes_huge_pages(|| {
        for _ in 0..3 {
            let run = Block::written(&RESIDENT, 60 * MIB);
            assert!(huge_page_bytes() >= 40 * MIB, "{} bytes in huge pages", huge_page_bytes());
            drop(run);
            release();
        }
    });
}

/// Memory behind the run was purged, within the run's last block of 2 MiB. The kernel lists that block as a separate
/// mapping, and moves one mapping per call.
#[test]
fn a_run_of_several_mappings_moves_without_a_copy() {
    where_the_kernel_makes_huge_pages(|| {
        let [before, run] = run_before_purged_memory();
        let behind = Block::written(&RESIDENT, 300 * KIB);
        let (address, refusals) = (run.address(), stats().refusals);
        let run = run.resized(64 * MIB).expect("memory");
        assert_ne!(run.address(), address, "it has to move, since {:#x} is taken", behind.address());
        assert_eq!(stats().refusals, refusals, "{}", stats());
        // From Linux 6.17 on, one call moves several mappings. A part that kept its old flags would show here.
        assert!(end_is_huge(&run), "a part of it came as another mapping");
        drop(before);
    });
}

/// A block of 2 MiB may become huge again when the whole block is resident, no matter how it was filled.
#[test]
fn a_block_that_is_resident_again_becomes_huge() {
    where_the_kernel_makes_huge_pages(|| {
        let [before, run] = run_before_purged_memory();
        let run = run.resized(16 * MIB).expect("memory");
        assert!(end_is_huge(&run), "all of its block is there again");
        drop(before);
    });
}

/// New slabs between purged ones must not let the kernel fill the purged ones.
#[test]
fn khugepaged_does_not_fill_purged_slabs_between_new_ones() {
    where_the_kernel_makes_huge_pages(|| {
        let mut blocks: Vec<_> = (0..64 * KIB).map(|_| Block::written(&RESIDENT, KIB)).collect();
        let region = Region::new();
        // One in about every other slab of 16 KiB.
        keep_every(40, &mut blocks);
        release();
        let others: Vec<_> = (0..50_000).map(|_| Block::written(&RESIDENT, 700)).collect();
        let before = region.resident_bytes();
        region.make_huge();
        let after = region.resident_bytes();
        assert!(after <= before + before / 50 + 2 * MIB, "{before} bytes became {after}");
        drop((blocks, others));
    });
}

/// A command that works once has no second time to keep memory for.
#[test]
fn a_freed_run_goes_back_at_once_without_phases() {
    alone!(each EACH_SETTING);
    let _live = Block::written(&RESIDENT, MIB);
    drop(Block::written(&RESIDENT, 64 * MIB));
    let resident = stats().resident_bytes;
    assert!(resident < 8 * MIB, "{resident} bytes stayed");
    Region::new().check("a run went back");
}

/// The program faults in the pages that it uses again and again once more, and then no more.
#[test]
fn runs_that_are_used_again_go_back_once() {
    alone!();
    let use_memory = || drop((0..16).map(|_| Block::written(&RESIDENT, 4 * MIB)).collect::<Vec<_>>());
    (0..2).for_each(|_| use_memory());
    let before = stats().fresh_bytes;
    (0..50).for_each(|_| use_memory());
    let (fresh, resident) = (stats().fresh_bytes - before, stats().resident_bytes);
    assert!(fresh <= 4 * MIB as u64 && resident >= 60 * MIB, "{fresh} bytes were fresh, {resident} are resident");
}

/// The same for any order of requests.
#[test]
fn what_goes_back_and_is_used_again_is_bounded_by_the_most_that_is_ever_free() {
    alone!();
    let (mut numbers, mut live, mut live_bytes) = (Numbers::new(7), Vec::new(), 0);
    for _ in 0..5_000 {
        let size = 256 * KIB + numbers.below(4 * MIB);
        if live_bytes + size <= 64 * MIB && numbers.below(2) == 0 {
            live_bytes += size;
            live.push(Block::written(&RESIDENT, size));
        } else if !live.is_empty() {
            let block = live.swap_remove(numbers.below(live.len()));
            live_bytes -= block.size();
        }
    }
    let fresh = stats().fresh_bytes;
    assert!(fresh < 4 * 64 * MIB as u64, "{fresh} bytes were faulted in for 64 MiB");
}

#[test]
fn memory_that_the_program_keeps_does_not_go_back_when_it_is_freed() {
    alone!();
    let _live = Block::written(&RESIDENT, MIB);
    let stays = |how: &str| {
        drop(Block::written(&RESIDENT, 32 * MIB));
        assert!(stats().resident_bytes >= 32 * MIB, "{how}");
        release();
    };
    phase(|| stays("a phase is open"));
    set_retain(Retain::Always);
    stays("all is kept");
    set_retain(Retain::Bytes(40 * MIB));
    stays("40 MiB are kept");
    set_retain(Retain::For(std::time::Duration::from_secs(60)));
    assert!(reserve(32 * MIB) >= 32 * MIB);
    stays("it was reserved");
}
