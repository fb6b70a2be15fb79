// Before the README's own: the first of two links of one name holds.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod batch;
mod pool;
mod uni;

pub use batch::prove_batch;
pub use pool::init;
pub use uni::{prove, prove_with_preprocessed, prove_with_trace};

// Does not compile against the crate `zk-alloc` of crates.io, another project's arena, which overwrites what is alive.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
