//! The thread pool of the prover, built where it costs least.

/// Builds rayon's global thread pool, with rayon's own defaults (`RAYON_NUM_THREADS` included), and returns whether this
/// call built it: `false` if there was one already. Call it before the first phase, so that nothing the pool keeps for
/// the life of the process occupies the arena. Its workers take part in
/// phases also under [`Participants::Pool`](crate::Participants::Pool). Where it is called later, or not at all, everything still works.
pub fn build_global() -> bool {
    rayon::ThreadPoolBuilder::new().start_handler(|_| crate::phase::join()).build_global().is_ok()
}
