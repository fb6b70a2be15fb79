//! The edges of a process's life: before `main`, at exit, and in a signal handler between two instructions of a thread.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;

use crate::support::process::handle;
use crate::support::{THRESHOLDS, alone, child, in_its_own_process};
use crate::{buffers, intact};
use zk_alloc::{PhaseGuard, phase, stats};

/// With the first, the arena serves all requests; with the second, it serves the larger ones.
const MIN_BYTES: [(&str, &str); 2] = [("ZK_ALLOC_MIN_BYTES", "0"), ("ZK_ALLOC_MIN_BYTES", "1024")];

/// Set in a process that opens phases before `main`.
const IS_EARLY: &str = "ZK_ALLOC_TEST_EARLY";
/// Buffers that were made before `main`, in a phase and outside of one.
static BEFORE_MAIN: Mutex<Vec<Vec<Vec<u64>>>> = Mutex::new(Vec::new());
static EARLY_ARENA_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

extern "C" fn before_main() {
    if std::env::var_os(IS_EARLY).is_none() {
        return;
    }
    let outside = buffers(1);
    let inside = phase(|| buffers(2));
    EARLY_ARENA_ALLOCATIONS.store(stats().arena_allocations, Ordering::Relaxed);
    *BEFORE_MAIN.lock().unwrap() = vec![outside, inside, phase(|| phase(|| buffers(3)))];
    if std::env::var_os(AT_EXIT).is_some() {
        // SAFETY: a function that may be called at exit.
        assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
        LAST.with_borrow_mut(|last| *last = Some(Last(Vec::new())));
        phase(|| {
            *LEFT.lock().unwrap() = buffers(5);
            LAST.with_borrow_mut(|last| last.as_mut().unwrap().0 = buffers(9));
        });
    }
}

// SAFETY: the loader calls the functions that are listed here, and they have this type.
#[unsafe(link_section = ".init_array")]
#[used]
static INIT: extern "C" fn() = before_main;

/// A constructor may open the first phase of the process, before `main` and the runtime have run. Its buffers are as
/// good as any others.
#[test]
fn buffers_made_before_main_live_through_the_phases_after_it() {
    let check = || {
        assert!(EARLY_ARENA_ALLOCATIONS.load(Ordering::Relaxed) >= 4, "{}", stats());
        for round in 0..5 {
            phase(|| assert!(intact(&buffers(round), round)));
        }
        let mut early = BEFORE_MAIN.lock().unwrap();
        early.iter().zip(1..).for_each(|(buffers, seed)| assert!(intact(buffers, seed), "buffers {seed}"));
        for words in early.iter_mut().flatten() {
            phase(|| words.extend_from_within(..));
        }
        phase(|| early.clear());
    };
    for min_bytes in MIN_BYTES {
        in_its_own_process(&[min_bytes, (IS_EARLY, "1")], check);
    }
}

static LAZY: LazyLock<Vec<Vec<u64>>> = LazyLock::new(|| buffers(4));

/// Some phase fills a cache behind a static, which is never freed.
#[test]
fn a_static_filled_in_one_phase_serves_all_that_follow() {
    alone!(each THRESHOLDS);
    for round in 0..10 {
        phase(|| assert!(intact(&buffers(round), round) && intact(&LAZY, 4)));
    }
    assert!(thread::spawn(|| phase(|| intact(&LAZY, 4))).join().unwrap());
    assert!(stats().arena_allocations >= 4 * 11, "{}", stats());
}

fn say(line: &str) {
    // SAFETY: valid for its length.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Set in a process whose main thread leaves buffers for its end. Tests run on other threads; code before `main` runs
/// on the main thread.
const AT_EXIT: &str = "ZK_ALLOC_TEST_AT_EXIT";

/// Buffers that a phase left for the end of the process.
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

/// After `main`, the destructors of the main thread's locals run, and then the handlers of `atexit`. They open phases,
/// and free memory of earlier ones.
#[test]
fn handlers_and_destructors_at_exit_use_phases() {
    for min_bytes in MIN_BYTES {
        let settings = [min_bytes, (IS_EARLY, "1"), (AT_EXIT, "1")];
        if let Some(ended) = child(&settings, || phase(|| assert!(intact(&buffers(11), 11)))) {
            ended.assert_passed();
            assert_eq!(ended.stderr, "thread local: intact\nat exit: intact\n", "{ended:?}");
        }
    }
}

const SLAB_SIZED: Layout = Layout::new::<[u64; 1_024]>();
const RUN_SIZED: Layout = Layout::new::<[u64; 6_000]>();

static HANDLED: AtomicU64 = AtomicU64::new(0);
static BROKEN: AtomicBool = AtomicBool::new(false);
/// Buffers of [`SLAB_SIZED`] on their way from the interrupted code to the handler, and back.
static TO_HANDLER: AtomicPtr<u64> = AtomicPtr::new(null_mut());
static FROM_HANDLER: AtomicPtr<u64> = AtomicPtr::new(null_mut());
/// The words with which the handler and the interrupted code fill the buffers that they pass on.
const HANDLERS: u64 = 0xAAAA_AAAA_AAAA_AAAA;
const INTERRUPTED: u64 = 0x5555_5555_5555_5555;

/// A new buffer full of `word`.
fn make(layout: Layout, word: u64) -> *mut u64 {
    // SAFETY: the size is not zero.
    let at = unsafe { alloc(layout) }.cast::<u64>();
    for i in 0..layout.size() / 8 {
        // SAFETY: within the buffer, which this function owns.
        unsafe { at.add(i).write_volatile(word) };
    }
    at
}

/// Frees a buffer from [`make`], which must still be full of `word`.
fn end(at: *mut u64, layout: Layout, word: u64) {
    // SAFETY: the buffer is whole, and the caller passed it on.
    if (0..layout.size() / 8).any(|i| unsafe { at.add(i).read_volatile() } != word) {
        BROKEN.store(true, Ordering::Relaxed);
    }
    // SAFETY: as above; nothing uses it after this.
    unsafe { dealloc(at.cast(), layout) };
}

/// Puts a new buffer in a slot, and frees the one that was there.
fn pass(slot: &AtomicPtr<u64>, word: u64) {
    let passed = slot.swap(make(SLAB_SIZED, word), Ordering::AcqRel);
    if !passed.is_null() {
        end(passed, SLAB_SIZED, word);
    }
}

extern "C" fn on_signal(_: c_int) {
    // Enough that the thread goes to another slab now and then.
    let slab_sized = [1; 6].map(|word| make(SLAB_SIZED, word));
    let run = make(RUN_SIZED, 2);
    pass(&FROM_HANDLER, HANDLERS);
    // Frees a buffer of the interrupted code, perhaps in the middle of an allocation or a free.
    let passed = TO_HANDLER.swap(null_mut(), Ordering::AcqRel);
    if !passed.is_null() {
        end(passed, SLAB_SIZED, INTERRUPTED);
    }
    end(run, RUN_SIZED, 2);
    slab_sized.into_iter().for_each(|at| end(at, SLAB_SIZED, 1));
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// Sends signals to a thread, one after the other, until enough of them were handled.
fn interrupt(worker: libc::pthread_t, signals: u64) {
    while HANDLED.load(Ordering::Relaxed) < signals && !BROKEN.load(Ordering::Relaxed) {
        let before = HANDLED.load(Ordering::Relaxed);
        // SAFETY: the worker waits for this thread, so it outlives it.
        assert_eq!(unsafe { libc::pthread_kill(worker, libc::SIGUSR1) }, 0);
        while HANDLED.load(Ordering::Relaxed) == before {
            std::hint::spin_loop();
        }
    }
}

/// A signal comes between any two instructions, also in the middle of the arena's bookkeeping, and its handler
/// allocates. All requests of the handler and of the interrupted code go to the arena, in a phase. So the signal never
/// interrupts the backing allocator, which no handler may enter again.
#[test]
fn a_signal_handler_allocates_in_the_midst_of_an_allocation() {
    const SIGNALS: u64 = 3_000;
    const RING: u64 = 80;
    alone!();
    let _guard = PhaseGuard::new();
    // 80 buffers of 8 KiB need more than one slab, so slabs come and go all the time.
    let mut ring: Vec<_> = (0..RING).map(|seed| (make(SLAB_SIZED, seed), seed)).collect();
    assert!(handle(libc::SIGUSR1, on_signal, libc::SA_RESTART));
    // SAFETY: only returns this thread.
    let worker = unsafe { libc::pthread_self() };
    let mut made = RING;
    thread::scope(|scope| {
        let sender = scope.spawn(|| interrupt(worker, SIGNALS));
        while !sender.is_finished() {
            made += 2;
            let (at, seed) = std::mem::replace(&mut ring[(made * 7 % RING) as usize], (make(SLAB_SIZED, made), made));
            end(at, SLAB_SIZED, seed);
            pass(&TO_HANDLER, INTERRUPTED);
        }
        sender.join().unwrap();
    });
    ring.into_iter().for_each(|(at, seed)| end(at, SLAB_SIZED, seed));
    assert!(!BROKEN.load(Ordering::Relaxed), "a buffer was overwritten");
    let handled = HANDLED.load(Ordering::Relaxed);
    assert!(handled >= SIGNALS && stats().run_allocations >= SIGNALS, "{}", stats());
    let by_handlers = 7 * handled;
    let not_in_a_slab = (made + by_handlers).saturating_sub(stats().slab_allocations);
    assert!(not_in_a_slab < by_handlers / 2, "{}", stats());
}
