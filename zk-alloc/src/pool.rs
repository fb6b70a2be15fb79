//! The prover's thread pool: it is built where it costs least, and its threads are workers.

use crate::phase;

/// Makes the calling thread a worker: it takes part in every phase, even if only
/// [`Participants::Pool`](crate::Participants::Pool) do. Call it in the start handler of your own thread pool. `build_global`
/// (feature `rayon`) registers its workers itself.
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

/// Builds rayon's global thread pool, with rayon's own defaults (`RAYON_NUM_THREADS` included). Returns whether this call built
/// it: `false` if there was one already. Call it before the first phase, so that memory that the pool keeps for ever does not lie
/// in the arena. Its workers take part in phases also under [`Participants::Pool`](crate::Participants::Pool). If you call it
/// later, or never, everything still works.
///
/// ```
/// assert!(zk_alloc::pool::build_global());
/// assert!(!zk_alloc::pool::build_global(), "there is one now");
/// ```
#[cfg(feature = "rayon")]
pub fn build_global() -> bool {
    crate::background::start_if_set();
    rayon::ThreadPoolBuilder::new().start_handler(|_| register_worker()).build_global().is_ok()
}
