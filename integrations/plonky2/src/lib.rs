// Stands before the README's own definition: if a name has two links, the first one counts.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod circuit;
mod pool;
pub mod prover;
#[cfg(feature = "starky")]
pub mod starky;

pub use circuit::{Circuit, prove, prove_with_timing};
pub use pool::init;

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That arena overwrites
// live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
