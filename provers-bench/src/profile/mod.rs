//! The command `profile`: where a prover's memory goes, by stage and by call site, on one page.
//!
//! The arm `zk-alloc-profile` makes two proofs. The process writes its files ([`child`](crate::child)), and the driver
//! draws the page from them.

mod cli;
mod session;
mod table;

pub(crate) use cli::{command, job};
pub(crate) use session::run;

use crate::plan::SizedWorkload;
use crate::workloads::Prover;
use std::path::PathBuf;

/// A requested profile.
#[derive(Debug)]
pub(crate) struct Job {
    prover: &'static Prover,
    workload: SizedWorkload,
    threads: Option<u64>,
    /// The mean distance of samples.
    mean_bytes: u64,
    /// The folder of the profiles.
    out: Option<PathBuf>,
    /// The folder of an earlier profile.
    against: Option<PathBuf>,
}
