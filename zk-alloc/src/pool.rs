//! The prover's thread pool: it is built where it costs least, and its threads are workers.

use crate::phase;

/// Makes the calling thread a worker: it takes part in every phase, even if only
/// [`Participants::Pool`](crate::Participants::Pool) do. Call it in the start handler of your own thread pool. [`build_global`]
/// registers its workers itself.
///
/// ```
/// std::thread::spawn(|| {
///     zk_alloc::pool::register_worker();
///     zk_alloc::phase(|| drop(vec![1u8; 1 << 20]));
/// })
/// .join()
/// .unwrap();
/// ```
pub fn register_worker() {
    phase::register_worker();
}

/// Builds rayon's global thread pool, with rayon's own defaults (`RAYON_NUM_THREADS` included). Its workers take part in phases also
/// under [`Participants::Pool`](crate::Participants::Pool).
///
/// Call it first thing in `main`. If you don't, rayon builds the pool at the first proof, inside that proof's phase. That breaks
/// nothing, but the pool's own memory then occupies pages of the arena as long as the process lives.
///
/// Returns whether this call built the pool. It returns `false` if the pool already existed (built by an earlier call, by the program
/// or by rayon itself), and without the feature `rayon`. Calling it again does nothing.
///
/// ```
/// assert_eq!(zk_alloc::pool::build_global(), cfg!(feature = "rayon"));
/// assert!(!zk_alloc::pool::build_global(), "there is one now");
/// ```
pub fn build_global() -> bool {
    #[cfg(feature = "rayon")]
    {
        crate::background::start_if_set();
        rayon::ThreadPoolBuilder::new().start_handler(|_| register_worker()).build_global().is_ok()
    }
    #[cfg(not(feature = "rayon"))]
    {
        false
    }
}
