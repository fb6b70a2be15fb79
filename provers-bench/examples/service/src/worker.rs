//! `--isolate`: worker processes, each with a budget of memory (`RLIMIT_DATA`). A worker reads requests from standard
//! input and answers on standard output, one JSON line each. If an allocation fails, it aborts, and the standard
//! library names the size of the request on standard error.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::MIB;
use crate::http::Failure;
use crate::prover::{Made, Prover, Request};
use crate::queue::mib;
use crate::service::panic_message;

/// A line from a worker: a proof, or why there is none. The first line, `READY`, comes unasked.
type Answer = Result<Made, String>;
const READY: &str = "ready";

/// A worker, from the inside: proves until standard input ends.
pub fn run(budget_bytes: usize) -> anyhow::Result<()> {
    let limit = |resource, bytes: usize| {
        setrlimit(resource, Rlimit { current: Some(bytes as u64), maximum: getrlimit(resource).maximum })
    };
    limit(Resource::Data, budget_bytes).with_context(|| format!("limiting a worker to {budget_bytes} bytes"))?;
    // A worker over its budget aborts, and a core file would have the whole budget in it.
    limit(Resource::Core, 0).context("turning core files off")?;
    let prover = Prover::new();
    write_line(READY)?;
    for line in std::io::stdin().lines() {
        let request = serde_json::from_str(&line?).context("reading a request")?;
        // After a panic, nothing of the proof is used again.
        let made = catch_unwind(AssertUnwindSafe(|| prover.make(&request)));
        let answer: Answer = made.map_err(panic_message).and_then(|made| made.map_err(|error| format!("{error:#}")));
        write_line(&serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

fn write_line(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("writing an answer")
}

/// The workers, from the outside. As many proofs run at once as there are workers.
#[derive(Debug)]
pub struct Workers {
    budget_bytes: usize,
    threads: usize,
    idle: Mutex<Vec<Worker>>,
    /// The processes so far.
    pub processes: AtomicU64,
}

impl Workers {
    /// Starts `count` workers.
    pub async fn start(count: usize, budget_bytes: usize) -> anyhow::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(count);
        let workers = Self { budget_bytes, threads, idle: Mutex::default(), processes: AtomicU64::new(0) };
        for number in 1..=count {
            let worker = workers.spawn().await.with_context(|| format!("starting worker {number} of {count}"))?;
            workers.return_idle(worker);
        }
        Ok(workers)
    }

    /// Makes a proof in an idle worker, or in a new one if the last was lost. A dropped future ends its worker at once.
    ///
    /// If a used worker fails for its budget, a fresh one decides: memory that the arena has mapped for proofs of other
    /// sizes counts against the budget as well.
    pub async fn make(&self, request: &Request) -> Result<Made, Failure> {
        let lost = |error: anyhow::Error| Failure::of_prover(format!("its worker was lost: {error:#}"));
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut worker = match idle {
                Some(worker) => worker,
                None => self.spawn().await.map_err(lost)?,
            };
            let is_used = std::mem::replace(&mut worker.is_used, true);
            match worker.ask(request).await {
                Ok(answer) => {
                    self.return_idle(worker);
                    return answer.map_err(Failure::of_prover);
                }
                Err(error) => match worker.end().await {
                    (_, Some(_)) if is_used => {}
                    (_, Some(refused)) => {
                        let (refused, budget) = (mib(refused), mib(self.budget_bytes));
                        let why = format!("the system refused its worker {refused}, of {budget} in all");
                        return Err(Failure::over_memory(request.log_rows, &why));
                    }
                    (status, None) => return Err(lost(error.context(status.map_or(String::new(), |s| s.to_string())))),
                },
            }
        }
    }

    fn return_idle(&self, worker: Worker) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
    }

    async fn spawn(&self) -> anyhow::Result<Worker> {
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["--worker", "--isolate", &(self.budget_bytes / MIB).to_string()]);
        // A failed allocation is one line, without a backtrace.
        command.env("RUST_BACKTRACE", "0");
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            command.env("RAYON_NUM_THREADS", self.threads.to_string());
        }
        // Ctrl-C in a terminal reaches a whole process group. The service's running proofs finish after it.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(requests), Some(answers), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            bail!("a worker without pipes");
        };
        self.processes.fetch_add(1, Ordering::Relaxed);
        let refused_bytes = tokio::spawn(async move {
            let (mut lines, mut refused_bytes) = (BufReader::new(errors).lines(), None);
            while let Ok(Some(line)) = lines.next_line().await {
                let bytes = line.strip_prefix("memory allocation of ").and_then(|rest| rest.split(' ').next());
                refused_bytes = refused_bytes.or(bytes.and_then(|bytes| bytes.parse().ok()));
                eprintln!("worker: {line}");
            }
            refused_bytes
        });
        let answers = BufReader::new(answers);
        let mut worker = Worker { child, requests, answers, refused_bytes, is_used: false };
        let first = worker.line().await?;
        ensure!(first.trim() == READY, "the worker began with {first}");
        Ok(worker)
    }
}

#[derive(Debug)]
struct Worker {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The size of the request that failed, once the process is gone.
    refused_bytes: JoinHandle<Option<usize>>,
    is_used: bool,
}

impl Worker {
    async fn ask(&mut self, request: &Request) -> anyhow::Result<Answer> {
        let line = serde_json::to_string(request)? + "\n";
        self.requests.write_all(line.as_bytes()).await.context("asking the worker")?;
        serde_json::from_str(&self.line().await?).context("understanding the worker's answer")
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let bytes = self.answers.read_line(&mut line).await.context("reading the worker's answer")?;
        ensure!(bytes > 0, "it ended without an answer");
        Ok(line)
    }

    /// Waits until the process is gone, and its memory is free. Returns the size of the request that failed, if one did.
    async fn end(mut self) -> (Option<ExitStatus>, Option<usize>) {
        drop(self.requests);
        let status = self.child.wait().await.ok();
        (status, self.refused_bytes.await.ok().flatten())
    }
}
