#![doc = include_str!("../README.md")]

mod circuit;
mod pool;
pub mod prover;
#[cfg(feature = "starky")]
pub mod starky;

pub use circuit::{Circuit, prove, prove_with_timing};
pub use pool::init;
