//! A vforked child runs on the memory of its parent, in place of the calling thread, while the parent's other threads
//! go on.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Kept, Numbers, THRESHOLDS, alone};
use zk_alloc::{PhaseGuard, release};

const TIME: Duration = Duration::from_secs(3);

/// Lengths of buffers in words. They fall into few classes, so that a thread's cache is often empty or full and checks
/// for claims.
const LENGTHS: [usize; 6] = [6, 20, 20, 120, 700, 9_000];

fn churn(kept: &mut Kept, numbers: &mut Numbers) -> bool {
    (0..400).all(|_| kept.replace(numbers, 160, &LENGTHS))
}

/// Runs `child` as vfork(2) would, but with its own stack, so that its frames do not overwrite the caller's. Returns
/// how it ended.
fn vforked(stack: &mut [u8], child: &mut dyn FnMut() -> c_int) -> c_int {
    extern "C" fn begin(child: *mut c_void) -> c_int {
        // SAFETY: a closure of the caller, which is suspended until this child ends.
        unsafe { (*child.cast::<&mut dyn FnMut() -> c_int>())() }
    }
    let mut child = child;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the upper end of the child's own stack.
    let stack_end = unsafe { stack.as_mut_ptr().add(stack.len() & !15) };
    let stack_end = stack_end.wrapping_sub(stack_end.addr() % 16);
    // SAFETY: this thread is suspended until the child ends. Like a vforked child, it uses the thread-local memory of
    // its parent.
    let pid = unsafe { libc::clone(begin, stack_end.cast(), flags, (&raw mut child).cast()) };
    assert!(pid > 0, "no process: {}", std::io::Error::last_os_error());
    let mut status = -1;
    // SAFETY: a child of this process, and a place for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// The child's process id differs from that of the threads whose claims it finds in memory. If it took that for a fork,
/// it would cancel claims of live threads, and two threads would empty one cache.
#[test]
fn vforked_children_allocate_while_another_thread_takes_what_threads_keep() {
    alone!(each THRESHOLDS);
    let stop = &AtomicBool::new(false);
    let (children, releases) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let vforks = |id: u64| {
        let mut stack = vec![0; 256 << 10];
        let (mut numbers, mut kept) = (Numbers::new(id), Kept::new());
        let _guard = PhaseGuard::new();
        while !stop.load(Ordering::Relaxed) {
            let drains = numbers.below(2) == 0;
            let mut child = || c_int::from(!(churn(&mut kept, &mut numbers) && (!drains || kept.drain())));
            assert_eq!(vforked(&mut stack, &mut child), 0, "the child's memory was overwritten, or it died");
            children.fetch_add(1, Ordering::Relaxed);
            assert!(churn(&mut kept, &mut numbers), "the parent's memory was overwritten");
        }
    };
    let takes = || {
        while !stop.load(Ordering::Relaxed) {
            release();
            releases.fetch_add(1, Ordering::Relaxed);
        }
    };
    let started = Instant::now();
    thread::scope(|scope| {
        let threads = [1, 2].map(|id| scope.spawn(move || vforks(id)));
        scope.spawn(takes);
        while started.elapsed() < TIME && !threads.iter().any(|thread| thread.is_finished()) {
            thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (children, releases) = (children.load(Ordering::Relaxed), releases.load(Ordering::Relaxed));
    assert!(children > 20 && releases > 20, "{children} children, {releases} releases");
}
