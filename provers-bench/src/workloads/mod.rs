//! What is proved: the [`Workload`] trait, and the provers that this workspace brings.

#[cfg(feature = "jolt")]
pub mod jolt;
#[cfg(feature = "plonky3")]
mod koala_bear;
#[cfg(feature = "plonky2")]
pub mod plonky2;
#[cfg(feature = "plonky3")]
pub mod plonky3;
#[cfg(feature = "plonky3")]
pub mod whir;
mod workload;

pub(crate) use workload::Subject;
pub use workload::{Prover, Workload, WorkloadSpec};

/// The provers of this workspace.
// A constant would have every arm's binary compile the provers again: this names them once, in the library.
pub static PROVERS: &[Prover] = &[
    #[cfg(feature = "plonky3")]
    plonky3::PROVER,
    #[cfg(feature = "plonky2")]
    plonky2::PROVER,
    #[cfg(feature = "jolt")]
    jolt::PROVER,
];
