//! Macros for the binaries of a bench: the driver, each arm, and the recorder. Each binary is one line.

/// The whole of the driver's binary, for these provers.
///
/// `provers` names a `static` in the package's library: a constant would compile the provers again for every binary.
/// The driver's baseline of figures, `baseline.toml`, is next to the package's `Cargo.toml`.
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::driver!(my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! driver {
    ($provers:expr) => {
        fn main() -> ::std::process::ExitCode {
            $crate::driver::main($provers, ::core::env!("CARGO_MANIFEST_DIR"))
        }
    };
}

/// The whole of an arm's binary: installs one of the [`allocators`](crate::arms), and proves when the driver asks.
///
/// The arm `zk-alloc` starts the binary `with-zk-alloc`, which is `src/bin/with-zk-alloc.rs`:
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::arm!(zk_alloc, my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! arm {
    ($allocator:ident, $provers:expr) => {
        #[global_allocator]
        static ALLOCATOR: $crate::arms::$allocator::Allocator = $crate::arms::$allocator::ALLOCATOR;

        fn main() -> ::std::process::ExitCode {
            $crate::child::main($provers, $crate::arms::$allocator::installed())
        }
    };
}

/// The whole of the binary that records for `prove-bench record`: the system allocator, which also records every large
/// request.
///
/// The driver starts the binary `record`, which is `src/bin/record.rs`:
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::recorder!(my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! recorder {
    ($provers:expr) => {
        #[global_allocator]
        static ALLOCATOR: $crate::child::recorder::Recorder = $crate::child::recorder::Recorder;

        fn main() -> ::std::process::ExitCode {
            $crate::child::recorder::main($provers)
        }
    };
}
