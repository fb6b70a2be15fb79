//! How this library was built. The arms link the same library, and the driver rejects an arm that links another build.

use serde::{Deserialize, Serialize};

/// Compiler, flags and sources of a binary.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct BuildInfo {
    /// `rustc -V`.
    pub(crate) rustc: String,
    pub(crate) target: String,
    /// Flags from `RUSTFLAGS` or `.cargo/config.toml`, which include `target-cpu`.
    pub(crate) rustflags: String,
    /// Vector instructions that the compiler may use. Provers choose their field arithmetic by them.
    pub(crate) vector_features: Vec<String>,
    /// `release` or `debug`; cargo assigns custom profiles to one of them.
    pub(crate) profile: String,
    pub(crate) opt_level: String,
    /// Hash over the sources of harness and allocator.
    pub(crate) sources: String,
}

/// How the running binary was built.
pub(crate) fn current() -> BuildInfo {
    let features = [
        ("avx2", cfg!(target_feature = "avx2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("neon", cfg!(target_feature = "neon")),
    ];
    BuildInfo {
        rustc: env!("PROVE_BENCH_RUSTC").into(),
        target: env!("PROVE_BENCH_TARGET").into(),
        rustflags: env!("PROVE_BENCH_RUSTFLAGS").into(),
        vector_features: features.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.into()).collect(),
        profile: env!("PROVE_BENCH_PROFILE").into(),
        opt_level: env!("PROVE_BENCH_OPT_LEVEL").into(),
        sources: env!("PROVE_BENCH_SOURCES").into(),
    }
}
