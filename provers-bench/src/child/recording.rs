//! The `main` of the recording binary, and the variables by which the driver configures it.

use super::recorder;
use crate::workloads::Prover;
use anyhow::Context;
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

pub use super::recorder::Recorder;

/// Variables of the recorder's binary: the path of its trace, the title, and the smallest request to record.
pub(crate) const PATH: &str = "PROVE_BENCH_TRACE_PATH";
pub(crate) const TITLE: &str = "PROVE_BENCH_TRACE_TITLE";
pub(crate) const MIN_BYTES: &str = "PROVE_BENCH_TRACE_MIN_BYTES";

/// The `main` of the recorder's binary, whose global allocator is [`Recorder`].
pub fn main(provers: &[Prover]) -> ExitCode {
    let variable = |name| env::var(name).with_context(|| format!("{name} is not set: prove-bench record sets it"));
    let recorded = (|| {
        let (path, title) = (PathBuf::from(variable(PATH)?), variable(TITLE)?);
        let min_bytes = variable(MIN_BYTES)?;
        recorder::start(min_bytes.parse().with_context(|| format!("{MIN_BYTES} is no number: {min_bytes}"))?)?;
        let code = super::main(provers, recorder::installed());
        recorder::finish(&path, title)?;
        anyhow::Ok(code)
    })();
    recorded.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}
