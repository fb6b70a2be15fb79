//! Threads that help during one call. They prefault memory for [`reserve`](crate::reserve) and [`Pinned`](crate::Pinned). Code that serves
//! requests starts no threads.

use std::thread;

/// Stack size of a helper thread, in bytes. Without it, the standard library would read a default from the environment, under its
/// lock.
pub(crate) const STACK_BYTES: usize = 256 << 10;

/// Calls `work` with each number below `threads`, each on a thread of its own. The calling thread takes 0, and the number of any
/// thread that cannot be started. Returns when all calls have returned. `work` must not panic.
pub(crate) fn in_parallel(threads: usize, work: &(dyn Fn(usize) + Sync)) {
    thread::scope(|scope| {
        for part in 1..threads {
            let helper = thread::Builder::new().stack_size(STACK_BYTES);
            if helper.spawn_scoped(scope, move || work(part)).is_err() {
                work(part);
            }
        }
        if threads > 0 {
            work(0);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn in_parallel_runs_each_part_once_before_it_returns() {
        for threads in [0, 1, 2, 9] {
            let done: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            in_parallel(threads, &|part| {
                done[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads}: {done:?}");
        }
    }
}
