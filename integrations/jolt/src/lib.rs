// Before the README's own: the first of two links of one name holds.
#![doc = "[zk-alloc]: zk_alloc\n"]
#![doc = include_str!("../README.md")]

mod closure;
#[cfg(feature = "dory")]
pub mod dory;
mod pool;
mod wrap;

pub use closure::{prove, try_prove};
pub use pool::init;
pub use wrap::{ProverFn, wrap};

// Does not compile against the crate `zk-alloc` of crates.io, another project's arena, which overwrites what is alive.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
