//! `--isolate`: each proof in a process of its own, with a budget of memory (`RLIMIT_DATA`). The process reads a request
//! from standard input and writes its proof to standard output, in JSON. If an allocation fails, it aborts, and the
//! standard library names the size of the request on standard error.

use std::process::Stdio;

use anyhow::{Context, anyhow};
use metrics::counter;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::http::Failure;
use crate::prover::{Made, Prover, Request};
use crate::queue::mib;
use crate::{MIB, Options};

/// A worker, from the inside: makes one proof.
pub fn run(budget_bytes: usize) -> anyhow::Result<()> {
    let limit = |resource, bytes: usize| {
        setrlimit(resource, Rlimit { current: Some(bytes as u64), maximum: getrlimit(resource).maximum })
    };
    limit(Resource::Data, budget_bytes).with_context(|| format!("limiting a worker to {budget_bytes} bytes"))?;
    // A worker over its budget aborts, and a core file would have the whole budget in it.
    limit(Resource::Core, 0).context("turning core files off")?;
    let request = serde_json::from_reader(std::io::stdin()).context("reading the request")?;
    serde_json::to_writer(std::io::stdout(), &Prover::new().make(&request)?).context("writing the answer")
}

/// Makes a proof in a worker. A dropped future ends the worker at once.
pub async fn make(options: &Options, budget_mib: usize, request: &Request) -> Result<Made, Failure> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["--worker", "--isolate", &budget_mib.to_string()]);
    // A failed allocation is one line, without a backtrace.
    command.env("RUST_BACKTRACE", "0");
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(options.proofs.into());
        command.env("RAYON_NUM_THREADS", threads.to_string());
    }
    // Ctrl-C in a terminal reaches a whole process group. The service's running proofs finish after it.
    command.process_group(0).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting a worker")?;
    counter!("service_worker_processes_total").increment(1);
    if let Some(mut requests) = child.stdin.take() {
        // Fails if the worker is gone already, and its output tells why.
        let _ = requests.write_all(&serde_json::to_vec(request)?).await;
    }
    let output = child.wait_with_output().await.context("waiting for the worker")?;
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().for_each(|line| eprintln!("worker: {line}"));
    if let Ok(made) = serde_json::from_slice(&output.stdout) {
        return Ok(made);
    }
    let refused = said.lines().find_map(|line| line.strip_prefix("memory allocation of ")?.split(' ').next());
    let Some(refused_bytes) = refused.and_then(|bytes| bytes.parse().ok()) else {
        // The last line of a panic is its message.
        let last_line = said.lines().last().unwrap_or_default();
        return Err(anyhow!("its worker was lost: {}: {last_line}", output.status).into());
    };
    let (refused, budget) = (mib(refused_bytes), mib(budget_mib * MIB));
    Err(Failure::over_memory(request.log_rows, format!("the system refused its worker {refused}, of {budget} in all")))
}
