//! Unusual moments in the life of a process: before `main`, at exit, in a signal handler, and after other code has taken the C library's
//! thread keys.

use std::cell::RefCell;
use std::ffi::c_int;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;

use crate::support::process::handle;
use crate::support::{alone, child};
use crate::{buffers, intact};
use zk_alloc::{PhaseGuard, phase, stats};

/// With the first setting, the arena serves all requests; with the second, only the larger ones.
const MIN_BYTES: [(&str, &str); 2] = [("ZK_ALLOC_MIN_BYTES", "0"), ("ZK_ALLOC_MIN_BYTES", "1024")];

/// If this variable is set, the process opens phases before `main`, and uses the buffers of the main thread at exit. The tests run on other
/// threads.
const IS_EARLY: &str = "ZK_ALLOC_TEST_EARLY";
/// Buffers that were allocated before `main`, inside and outside of a phase.
static BEFORE_MAIN: Mutex<Vec<Vec<Vec<u64>>>> = Mutex::new(Vec::new());
static EARLY_ARENA_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LAZY: LazyLock<Vec<Vec<u64>>> = LazyLock::new(|| buffers(4));

extern "C" fn before_main() {
    if std::env::var_os(IS_EARLY).is_none() {
        return;
    }
    let outside = buffers(1);
    let inside = phase(|| buffers(2));
    EARLY_ARENA_ALLOCATIONS.store(stats().arena_allocations, Ordering::Relaxed);
    *BEFORE_MAIN.lock().unwrap() = vec![outside, inside, phase(|| phase(|| buffers(3)))];
    // SAFETY: `at_exit` may be called at exit.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
    LAST.with_borrow_mut(|last| *last = Some(Last(Vec::new())));
    phase(|| {
        *LEFT.lock().unwrap() = buffers(5);
        LAST.with_borrow_mut(|last| last.as_mut().unwrap().0 = buffers(9));
    });
}

// SAFETY: the loader calls the functions in this section, and they have this type.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = before_main;

/// A constructor may open the first phase of the process, before `main` and the runtime have run. Its buffers stay valid like any others.
/// After `main`, the destructors of the main thread's locals run, and then the `atexit` handlers. They open phases and free memory of
/// earlier ones.
#[test]
fn buffers_made_before_main_live_through_the_phases_after_it_and_at_exit() {
    let check = || {
        assert!(EARLY_ARENA_ALLOCATIONS.load(Ordering::Relaxed) >= 4, "{}", stats());
        // The first phase fills a static, which is never freed. Later phases read it.
        (0..5).for_each(|round| phase(|| assert!(intact(&buffers(round), round) && intact(&LAZY, 4))));
        assert!(thread::spawn(|| phase(|| intact(&LAZY, 4))).join().unwrap());
        let mut early = BEFORE_MAIN.lock().unwrap();
        early.iter().zip(1..).for_each(|(buffers, seed)| assert!(intact(buffers, seed), "buffers {seed}"));
        early.iter_mut().flatten().for_each(|words| phase(|| words.extend_from_within(..)));
        phase(|| early.clear());
    };
    for min_bytes in MIN_BYTES {
        if let Some(ended) = child(&[min_bytes, (IS_EARLY, "1")], check) {
            ended.assert_passed();
            assert_eq!(ended.stderr, "thread local: intact\nat exit: intact\n", "{ended:?}");
        }
    }
}

fn say(line: &str) {
    // SAFETY: `line` is valid for its length.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Buffers that were allocated in a phase and are freed when the process exits.
static LEFT: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

extern "C" fn at_exit() {
    let Ok(mut left) = LEFT.lock() else { return say("poisoned\n") };
    let made = phase(|| buffers(6));
    let ok = intact(&left, 5) && intact(&made, 6);
    phase(|| left.clear());
    let kept = phase(|| buffers(7));
    drop(made);
    say(if ok && intact(&kept, 7) && intact(&buffers(8), 8) { "at exit: intact\n" } else { "at exit: broken\n" });
}

struct Last(Vec<Vec<u64>>);

impl Drop for Last {
    fn drop(&mut self) {
        let made = phase(|| buffers(10));
        let ok = intact(&self.0, 9) && intact(&made, 10);
        self.0.clear();
        say(if ok && intact(&made, 10) { "thread local: intact\n" } else { "thread local: broken\n" });
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// A buffer of 8 KiB, which the arena serves from a slab.
type Block = Box<[u64; 1_024]>;

static HANDLED: AtomicU64 = AtomicU64::new(0);
static BROKEN: AtomicBool = AtomicBool::new(false);
/// `TO_HANDLER` holds the block that the interrupted code passes to the handler; `FROM_HANDLER` holds the block that a handler passes to
/// the next one.
static TO_HANDLER: AtomicPtr<[u64; 1_024]> = AtomicPtr::new(null_mut());
static FROM_HANDLER: AtomicPtr<[u64; 1_024]> = AtomicPtr::new(null_mut());
/// The words with which the handler and the interrupted code fill the blocks that they pass on.
const HANDLERS: u64 = 0xAAAA_AAAA_AAAA_AAAA;
const INTERRUPTED: u64 = 0x5555_5555_5555_5555;

/// Returns a new buffer full of `word`.
fn make<const WORDS: usize>(word: u64) -> Box<[u64; WORDS]> {
    black_box(Box::new([word; WORDS]))
}

/// Frees a buffer from [`make`]. Sets [`BROKEN`] unless it is still full of `word`.
fn end<const WORDS: usize>(buffer: Box<[u64; WORDS]>, word: u64) {
    if black_box(&buffer).iter().any(|&own| own != word) {
        BROKEN.store(true, Ordering::Relaxed);
    }
}

/// Puts `new` into `slot` and returns the block that was there.
fn swap(slot: &AtomicPtr<[u64; 1_024]>, new: Option<Block>) -> Option<Block> {
    let passed = slot.swap(new.map_or(null_mut(), Box::into_raw), Ordering::AcqRel);
    // SAFETY: a block in a slot came from a box, and is taken out once.
    (!passed.is_null()).then(|| unsafe { Box::from_raw(passed) })
}

extern "C" fn on_signal(_: c_int) {
    // Allocates enough blocks that the thread needs a new slab from time to time.
    let blocks: [Block; 6] = [1; 6].map(make);
    let run = make::<6_000>(2);
    swap(&FROM_HANDLER, Some(make(HANDLERS))).into_iter().for_each(|passed| end(passed, HANDLERS));
    // Frees a buffer of the interrupted code, perhaps in the middle of an allocation or a free.
    swap(&TO_HANDLER, None).into_iter().for_each(|passed| end(passed, INTERRUPTED));
    end(run, 2);
    blocks.into_iter().for_each(|block| end(block, 1));
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Sends signals to a thread, one after another, until it has handled `signals` of them.
fn interrupt(worker: libc::pthread_t, signals: u64) {
    while HANDLED.load(Ordering::Relaxed) < signals && !BROKEN.load(Ordering::Relaxed) {
        let before = HANDLED.load(Ordering::Relaxed);
        // SAFETY: the worker waits for this thread, so it still exists.
        assert_eq!(unsafe { libc::pthread_kill(worker, libc::SIGUSR1) }, 0);
        while HANDLED.load(Ordering::Relaxed) == before {
            std::hint::spin_loop();
        }
    }
}

/// A signal may arrive between any two instructions, even while the arena is changing its data structures, and the handler allocates. The
/// test keeps a phase open, so the arena serves all requests of the handler and of the interrupted code, and the signal never interrupts
/// the backing allocator, which is not reentrant.
#[test]
fn a_signal_handler_may_allocate_in_the_middle_of_an_allocation() {
    const SIGNALS: u64 = 3_000;
    const RING: u64 = 80;
    alone!();
    let _guard = PhaseGuard::new();
    // 80 buffers of 8 KiB need more than one slab, so the loop claims and frees slabs all the time.
    let mut ring: Vec<(Block, u64)> = (0..RING).map(|seed| (make(seed), seed)).collect();
    assert!(handle(libc::SIGUSR1, on_signal, libc::SA_RESTART));
    // SAFETY: pthread_self(3) has no preconditions.
    let worker = unsafe { libc::pthread_self() };
    let mut made = RING;
    thread::scope(|scope| {
        let sender = scope.spawn(|| interrupt(worker, SIGNALS));
        while !sender.is_finished() {
            made += 2;
            let (block, seed) = std::mem::replace(&mut ring[(made * 7 % RING) as usize], (make(made), made));
            end(block, seed);
            swap(&TO_HANDLER, Some(make(INTERRUPTED))).into_iter().for_each(|passed| end(passed, INTERRUPTED));
        }
        sender.join().unwrap();
    });
    ring.into_iter().for_each(|(block, seed)| end(block, seed));
    assert!(!BROKEN.load(Ordering::Relaxed), "a buffer was overwritten");
    let handled = HANDLED.load(Ordering::Relaxed);
    assert!(handled >= SIGNALS && stats().run_allocations >= SIGNALS, "{}", stats());
    let by_handlers = 7 * handled;
    let not_in_a_slab = (made + by_handlers).saturating_sub(stats().slab_allocations);
    assert!(not_in_a_slab < by_handlers / 2, "{}", stats());
}

/// Tests in which other code has already made many thread keys (pthread_key_create(3)). Values of the first 32 keys need no memory from
/// `malloc` in glibc; values of later keys do.
#[cfg(target_env = "gnu")]
mod keys {
    use std::hint::black_box;
    use std::thread;
    use std::time::Instant;

    use crate::support::child;
    use crate::support::process::variable;
    use zk_alloc::PhaseGuard;

    /// The variable that selects when the process makes its keys: [`LATE`] is in `main`, and [`EARLY`] is before the allocator makes its
    /// own.
    const KEYS: &str = "ZK_ALLOC_TEST_KEYS";
    const LATE: &str = "late";
    const EARLY: &str = "early";

    fn make_keys() {
        for _ in 0..40 {
            let mut key = 0;
            // SAFETY: `key` is a valid place for the key, whose values need no destructor.
            assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, None) }, 0);
        }
    }

    extern "C" fn make_early() {
        if variable(c"ZK_ALLOC_TEST_KEYS") == Some(EARLY) {
            make_keys();
        }
    }

    // Runs before the allocator makes its own key.
    // SAFETY: the loader calls the functions in this section, and they have this type.
    #[unsafe(link_section = ".init_array.00050")]
    #[used]
    static INIT: extern "C" fn() = make_early;

    /// Returns whether this thread has a cache. A cache returns the block that was freed last; slabs return the lowest free block.
    fn has_cache() -> bool {
        let [low, high] = {
            let mut blocks = [(); 2].map(|()| Box::new([1u8; 200]));
            blocks.sort_by_key(|block| block.as_ptr().addr());
            blocks.map(Box::into_raw)
        };
        // SAFETY: both blocks were allocated above, and each is freed once.
        unsafe {
            drop(Box::from_raw(low));
            drop(Box::from_raw(high));
        }
        let next = black_box(Box::new([2u8; 200]));
        std::ptr::eq(&raw const *next, high)
    }

    /// Returns the median time in nanoseconds to allocate and free 64 bytes.
    fn pair_ns() -> f64 {
        let mut rounds = [(); 201].map(|()| {
            let began = Instant::now();
            (0..2_000).for_each(|_| drop(black_box(Box::new([0u8; 64]))));
            began.elapsed().as_nanos() as f64 / 2_000.0
        });
        rounds.sort_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    }

    /// Blocks one signal in this thread, as the kernel does while a handler runs, or unblocks all signals.
    fn block_a_signal(is_blocked: bool) {
        // SAFETY: all zeroes is a valid set, and only this thread's mask changes.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            if is_blocked {
                libc::sigaddset(&raw mut set, libc::SIGUSR1);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        }
    }

    /// Checks when threads get a cache. The arena gives a thread a cache only if it can set the arena's key, whose destructor returns the
    /// cache when the thread exits. If the first 32 keys are taken, setting it calls `malloc`, which a signal handler may have interrupted.
    /// So the thread gets no cache in a handler, and asks again later. There are 2,048 caches, so each must become free when its thread
    /// exits.
    fn use_threads(when: &str) {
        drop(black_box(Box::new([0u8; 1 << 20])));
        // A new thread inherits its creator's blocked signals.
        block_a_signal(true);
        let is_early = when == EARLY;
        let thread = thread::spawn(move || {
            assert_eq!(has_cache(), !is_early);
            block_a_signal(false);
            // The thread asks again after some requests.
            (0..300).for_each(|_| drop(black_box(Box::new([0u8; 64]))));
            assert!(has_cache(), "the thread did not ask again once its signals were unblocked");
        });
        thread.join().unwrap();
        block_a_signal(false);
        for number in 0..2_500 {
            assert!(thread::spawn(has_cache).join().unwrap(), "thread {number} has no cache");
        }
        let slabs = zk_alloc::stats().slabs;
        assert!(slabs < 40, "{slabs} slabs are in use after the threads ended");
    }

    #[test]
    fn with_any_pthread_key_threads_get_a_cache_outside_of_handlers_and_stay_fast() {
        let pair_ns_with = |when: &str| {
            let ended = child(&[(KEYS, when)], || {
                if when == LATE {
                    make_keys();
                }
                let _guard = PhaseGuard::new();
                assert!(has_cache(), "the thread has no cache");
                println!("measured {}", pair_ns());
                use_threads(when);
            })?;
            ended.assert_passed();
            Some(ended.printed("measured ").parse::<f64>().expect("a number"))
        };
        // Takes the best of several runs, because the machine may be busy.
        let best = |when| (0..3).filter_map(|_| pair_ns_with(when)).fold(f64::INFINITY, f64::min);
        let [none, late, early] = ["", LATE, EARLY].map(best);
        assert!(late <= 2.0 * none && early <= 2.0 * none, "{none:.1} ns a pair, {late:.1}, {early:.1}");
    }
}
