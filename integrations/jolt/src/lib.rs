// Stands before the README's own definition: if a name has two links, the first one counts.
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

// Does not compile against the crate `zk-alloc` on crates.io, which belongs to another project. That arena overwrites
// live memory.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;
