//! Sandboxes refuse single system calls (seccomp(2)) with `EPERM` or `ENOSYS`. The allocator goes on without any call
//! that it can do without, from its start or from any later moment. It hands out no memory twice, and its zeroes are
//! zeroes.

use std::ffi::{c_int, c_long};
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::forks::in_a_fork;
use crate::support::limits::limited;
use crate::support::seccomp::{Answer, error_of, refuse};
use crate::support::{Kept, Numbers, alone, assert_patterned, child_as, is_patterned, patterned};
use zk_alloc::{PhaseGuard, Retain, phase, release, set_retain, soften, stats};

const MIB: usize = 1 << 20;
/// The time for which memory is repeatedly taken from threads.
const TIME: Duration = Duration::from_millis(200);

/// When the calls are refused: before the process starts, or in the middle of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Since {
    Start,
    Later,
}

/// Works in processes in which these calls are refused.
#[track_caller]
fn without(calls: &'static [c_long], since: &[Since]) {
    for error in [libc::EPERM, libc::ENOSYS] {
        for &since in since {
            let prepare = |command: &mut Command| {
                let before_exec = move || {
                    let is_refused = since == Since::Later || refuse(calls, Answer::Errno(error));
                    if is_refused { Ok(()) } else { Err(std::io::Error::last_os_error()) }
                };
                // SAFETY: allocates nothing, and only calls the kernel.
                unsafe { command.pre_exec(before_exec) };
            };
            let begin = || since == Since::Start || refuse(calls, Answer::Errno(error));
            if let Some(ended) = child_as(&[], prepare, || work(calls, error, begin)) {
                ended.assert_passed();
            }
        }
    }
}

/// Threads with full caches are idle while others work, and while `release()` takes memory from all of them.
fn work(calls: &[c_long], error: c_int, begin: impl FnOnce() -> bool) {
    let (filled, begun, done, stop) = (&Barrier::new(4), &Barrier::new(6), &Barrier::new(4), &AtomicBool::new(false));
    // A failure ends the process, because other threads wait for the one that failed.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        // SAFETY: ends the process, without destructors.
        unsafe { libc::_exit(1) };
    }));
    let is_unfenced = calls.contains(&libc::SYS_membarrier);
    set_retain(Retain::Bytes(0));
    thread::scope(|scope| {
        for id in 0..3 {
            scope.spawn(move || {
                let _guard = PhaseGuard::new();
                drop(blocks(id));
                let kept = keep_two();
                filled.wait();
                begun.wait();
                done.wait();
                // Without a fence, no other thread can know that this one was idle.
                assert!(!is_unfenced || first_of(kept) == kept[1], "the cache was emptied");
                let own = blocks(id);
                own.iter().for_each(|words| assert_patterned(words, id));
            });
        }
        for id in 3..5 {
            scope.spawn(move || {
                begun.wait();
                churn(id, stop);
            });
        }
        filled.wait();
        assert!(begin(), "the kernel takes no filter");
        calls.iter().for_each(|&call| assert_eq!(error_of(call), error, "call {call} is not refused"));
        begun.wait();
        let started = Instant::now();
        for round in 0..2 {
            while started.elapsed() < (round + 1) * TIME {
                black_box(release());
            }
            phase(|| grow(round.into()));
            phase(grow_sparse);
            phase(zeroed);
            soften();
        }
        done.wait();
        stop.store(true, Ordering::Relaxed);
    });
    forked(calls.contains(&libc::SYS_clone), error);
}

/// A block of a class that nothing else here uses.
fn block() -> Box<[u8; 2_000]> {
    black_box(Box::new([1; 2_000]))
}

/// Frees two blocks, the higher one last, and returns their addresses, the lower one first. The thread's cache returns
/// the higher one first; the slabs return the lower one.
fn keep_two() -> [usize; 2] {
    for _ in 0..1_000 {
        let mut blocks = [(); 2].map(|()| block());
        blocks.sort_by_key(|block| block.as_ptr().addr());
        let kept = blocks.each_ref().map(|block| block.as_ptr().addr());
        blocks.into_iter().for_each(drop);
        // While another thread claims the caches, frees pass this one by.
        if first_of(kept) == kept[1] {
            return kept;
        }
    }
    panic!("the thread keeps no blocks");
}

/// The address of `kept` that is handed out first. While another thread claims the caches, requests pass them by, and get
/// blocks of other addresses. Where other programs use all cores, the system may stop that thread for a while.
fn first_of(kept: [usize; 2]) -> usize {
    (0..100).find_map(|_| first_of_a_thousand(kept)).expect("neither block was handed out again")
}

/// As [`first_of`]; `None` if 1,000 requests get other blocks.
fn first_of_a_thousand(kept: [usize; 2]) -> Option<usize> {
    // On the stack: a request of another class could be the one at which this thread empties its own cache.
    let mut others = [const { None }; 1_000];
    for other in &mut others {
        let next = block();
        let addr = next.as_ptr().addr();
        if kept.contains(&addr) {
            return Some(addr);
        }
        *other = Some(next);
        thread::yield_now();
    }
    None
}

/// Lengths in words, for blocks of some classes and for page runs.
const LENGTHS: [usize; 6] = [6, 20, 120, 700, 5_000, 60_000];

fn blocks(seed: u64) -> Vec<Vec<u64>> {
    (0..120).map(|number| patterned(LENGTHS[number % LENGTHS.len()], seed)).collect()
}

/// Replaces buffers one by one, and checks each.
fn churn(id: u64, stop: &AtomicBool) {
    let _guard = PhaseGuard::new();
    let (mut numbers, mut kept) = (Numbers::new(id), Kept::new());
    while !stop.load(Ordering::Relaxed) {
        // Mostly small ones, so that the thread is nearly always using its cache.
        let is_intact = (0..63).all(|_| kept.replace(&mut numbers, 120, &LENGTHS[..3]));
        assert!(is_intact && kept.replace(&mut numbers, 120, &LENGTHS), "a buffer has changed");
    }
    assert!(kept.drain(), "a buffer has changed");
}

/// Vectors that move when they grow, because another buffer lies behind each.
fn grow(seed: u64) {
    let mut grown: Vec<_> = (0..2).map(|id| patterned(6 * MIB / 8, seed + id)).collect();
    let mut barriers = Vec::new();
    for _ in 0..3 {
        for words in &mut grown {
            barriers.push(black_box(vec![1u8; MIB]));
            words.reserve_exact(words.capacity());
            words.resize(words.capacity(), 7);
        }
    }
    for (words, id) in grown.iter().zip(0..) {
        assert_patterned(&words[..6 * MIB / 8], seed + id);
        assert!(words[6 * MIB / 8..].iter().all(|&word| word == 7));
    }
}

/// Vectors that are copied when they grow, and of which most pages were never touched.
fn grow_sparse() {
    drop(black_box(vec![0xA5u8; 16 * MIB]));
    let mut grown: Vec<_> = (0..8u8).map(|_| vec![0u8; 700 << 10]).collect();
    for words in &mut grown {
        words[9_000] = 7;
        words.reserve_exact(MIB);
    }
    for words in &grown {
        assert!(words.iter().zip(0..).all(|(&byte, at)| byte == if at == 9_000 { 7 } else { 0 }));
    }
}

/// Zeroed requests return zeroes, even from memory that was written before, in whole or in part.
fn zeroed() {
    for bytes in [3_000, 40 << 10, 300 << 10, 2 * MIB, 70 * MIB] {
        // After a sparse use, the arena checks how much is resident when this length is requested again.
        for step in [1, MIB, 1] {
            let mut buffer = black_box(vec![0u8; bytes]);
            assert!(buffer.iter().all(|&byte| byte == 0), "{bytes} bytes are not all zero");
            buffer.iter_mut().step_by(step).for_each(|byte| *byte = 0xA5);
            drop(black_box(buffer));
        }
    }
}

/// A child finds its inherited memory unchanged, and allocates. If no process can be started, nothing changes.
fn forked(is_refused: bool, error: c_int) {
    let inherited = phase(|| blocks(77));
    // The fork finds free memory.
    set_retain(Retain::Bytes(256 * MIB));
    phase(|| drop(black_box((0..8).map(|_| vec![1u8; 8 * MIB]).collect::<Vec<_>>())));
    let retained = stats().resident_bytes;
    if is_refused {
        // SAFETY: fails.
        let pid = unsafe { libc::fork() };
        assert_eq!((pid, std::io::Error::last_os_error().raw_os_error()), (-1, Some(error)));
    } else {
        let code = in_a_fork(|| {
            let is_whole = |blocks: &[Vec<u64>]| blocks.iter().all(|words| is_patterned(words, 77));
            let own = phase(|| blocks(77));
            release();
            u8::from(!(is_whole(&inherited) && is_whole(&own) && is_whole(&phase(|| blocks(77)))))
        });
        assert_eq!(code, 0, "the child found something else than it inherited");
    }
    inherited.iter().for_each(|words| assert_patterned(words, 77));
    phase(|| drop(black_box((0..8).map(|_| vec![1u8; 8 * MIB]).collect::<Vec<_>>())));
    assert!(stats().resident_bytes < retained + MIB, "the fork loses no free memory: {}", stats());
}

#[test]
fn memory_keeps_its_contents_without_calls_that_are_refused() {
    const ALWAYS: &[Since] = &[Since::Start, Since::Later];
    let cases: [(&[c_long], &[Since]); 6] = [
        // No thread knows whether another is using its cache. So no thread may empty another's cache.
        (&[libc::SYS_membarrier], ALWAYS),
        // Memory keeps its contents after a purge, and is not wiped in a forked child.
        (&[libc::SYS_madvise], ALWAYS),
        // Growth copies.
        (&[libc::SYS_mremap], ALWAYS),
        // Nothing tells whether clearing memory or purging it is cheaper.
        (&[libc::SYS_mincore], ALWAYS),
        // Nothing tells a page that was written to swap from one that was never touched. The loader reads by this call.
        (&[libc::SYS_pread64], &[Since::Later]),
        // No path that allocates needs a thread or a process of its own. Only the test starts threads, at its beginning.
        (&[libc::SYS_clone, libc::SYS_clone3], &[Since::Later]),
    ];
    cases.into_iter().for_each(|(calls, since)| without(calls, since));
}

/// Under a late limit, mremap(2) may refuse after it has already unmapped the target. That hole can't be mapped again,
/// so a request that got it would find no memory there.
#[test]
fn the_hole_of_a_refused_move_is_not_handed_out() {
    alone!();
    let _guard = PhaseGuard::new();
    // Maps memory, and purges it: under the limit, nothing more can be mapped.
    drop(black_box(vec![1u8; 63 * MIB]));
    drop(black_box((0..12).map(|_| vec![1u8; 16 * MIB]).collect::<Vec<_>>()));
    zk_alloc::release();
    let mut words = patterned(8 * MIB / 8, 5);
    let barrier = black_box(vec![1u8; 2 * MIB]);
    let refusals = stats().refusals;
    let others: Vec<_> = limited(libc::RLIMIT_AS, 1, || {
        words.reserve_exact(words.len());
        // One of these requests would get the hole, wherever it is.
        (0..8u8).map(|number| vec![number + 1; 16 * MIB]).collect()
    });
    assert_patterned(&words, 5);
    assert!(others.iter().zip(1..).all(|(bytes, number)| bytes.iter().all(|&byte| byte == number)));
    // Linux before 5.7 moves nothing.
    assert!(stats().refusals > refusals, "nothing was refused: {}", stats());
    drop(barrier);
}

/// From Linux 6.17 on, one mremap(2) call moves several mappings, one after the other. If the process has nearly the
/// maximum number of mappings, the call fails halfway. Then some pages are already at the new place, and growth must
/// not copy zeroes instead of them.
#[test]
fn a_vector_that_could_be_moved_only_in_part_keeps_its_contents() {
    alone!();
    let _guard = PhaseGuard::new();
    let page = 4096;
    let mut others = Vec::with_capacity(1 << 17);
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("Linux has it");
    let most: usize = most.trim().parse().expect("a number");
    assert!(most < 1 << 20, "so many mappings are too many to make");
    // SAFETY: new address space, which overlaps nothing.
    let space = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), 2 * most * page, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(space, libc::MAP_FAILED);
    // SAFETY: a page of the space mapped above. Its protection makes it a separate mapping, or merges it with its
    // neighbours.
    let protect = |index: usize, protection| unsafe {
        libc::mprotect(space.wrapping_byte_add(2 * index * page), page, protection) == 0
    };
    let mut parts: usize = 0;
    for slack in 0..12 {
        let seed = slack as u64;
        let enough = parts.saturating_sub(100);
        (enough..parts).for_each(|part| assert!(protect(part, libc::PROT_NONE)));
        parts = enough;
        let mut words = patterned(4 * MIB / 8, seed);
        // Moved and unmoved parts lie in separate mappings.
        for _ in 0..2 {
            others.push(black_box(vec![1u8; MIB]));
            words.reserve_exact(words.capacity());
            let len = words.len();
            words.extend_from_within(..len);
        }
        while parts < most && protect(parts, libc::PROT_READ) {
            parts += 1;
        }
        // Each call frees two mappings.
        (parts - slack..parts).for_each(|part| assert!(protect(part, libc::PROT_NONE)));
        parts -= slack;
        others.push(black_box(vec![1u8; MIB]));
        words.reserve_exact(words.capacity());
        words.chunks(4 * MIB / 8).for_each(|chunk| assert_patterned(chunk, seed));
        // Pages move to fresh memory only.
        drop(words);
        release();
    }
}
