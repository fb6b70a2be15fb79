//! Helper threads that live for one call. They prefault memory for [`reserve`](crate::reserve) and [`Pinned`](crate::Pinned). Code that
//! serves requests starts no threads.

use std::thread;

/// Stack size of a helper thread, in bytes. Without an explicit size, the standard library would read a default from the environment, under
/// its lock.
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
