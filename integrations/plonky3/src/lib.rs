// Stands before the README's own definition: if a name has two links, the first one counts.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod batch;
mod uni;

pub use batch::prove_batch;
pub use uni::{prove, prove_with_preprocessed, prove_with_trace};

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That arena overwrites
// live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// Builds rayon's global thread pool, which Plonky3 proves on, outside any phase: see [`zk_alloc::pool::build_global`].
/// Call it first thing in `main`. Returns `false` if the pool already existed, and without the feature `parallel`.
///
/// ```
/// zk_alloc_plonky3::init();
/// assert!(!zk_alloc_plonky3::init(), "the pool is built once");
/// ```
pub fn init() -> bool {
    cfg!(feature = "parallel") && zk_alloc::pool::build_global()
}
