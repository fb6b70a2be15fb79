#![doc = include_str!("../README.md")]

mod closure;
#[cfg(feature = "dory")]
pub mod dory;
mod pool;
mod wrap;

pub use closure::{prove, try_prove};
pub use pool::init;
pub use wrap::{ProverFn, wrap};
