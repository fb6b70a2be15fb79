// Before the README's own: the first of two links of one name holds.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod circuit;
mod pool;
pub mod prover;
#[cfg(feature = "starky")]
pub mod starky;

pub use circuit::{Circuit, prove, prove_with_timing};
pub use pool::init;

// Does not compile against the crate `zk-alloc` of crates.io, another project's arena, which overwrites what is alive.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
