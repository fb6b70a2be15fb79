//! The thread pool that plonky2 proves on.

/// Builds rayon's global thread pool, which plonky2 proves on, outside any phase. Call it first thing in `main`.
///
/// Without it, rayon builds the pool at the first proof, inside that proof's phase. That breaks nothing, but the pool's
/// own memory then occupies pages of the arena as long as the process lives.
///
/// Returns whether this call built the pool. It returns `false` if the pool already existed (built by an earlier call,
/// by the program or by rayon itself), and without the feature `parallel`. Calling it again does nothing.
///
/// ```
/// zk_alloc_plonky2::init();
/// assert!(!zk_alloc_plonky2::init(), "the pool is built once");
/// ```
pub fn init() -> bool {
    #[cfg(feature = "parallel")]
    {
        zk_alloc::pool::build_global()
    }
    #[cfg(not(feature = "parallel"))]
    {
        false
    }
}
