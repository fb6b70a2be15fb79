// Stands before the README's own definition: if a name has two links, the first one counts.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod batch;
mod pool;
mod uni;

pub use batch::prove_batch;
pub use pool::init;
pub use uni::{prove, prove_with_preprocessed, prove_with_trace};

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That arena overwrites
// live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
