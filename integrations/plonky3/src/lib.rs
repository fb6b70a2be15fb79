#![doc = include_str!("../README.md")]

mod batch;
mod pool;
mod uni;

pub use batch::prove_batch;
pub use pool::init;
pub use uni::{prove, prove_with_preprocessed, prove_with_trace};
