//! The service: each request waits for its turn, then makes its proof in this process or in a worker.
//!
//! With `--isolate`, each proof runs in its own process, with a memory budget (`RLIMIT_DATA`). The process reads a request from standard
//! input and writes its proof to standard output, both as JSON. If an allocation fails, the process aborts, and the standard library prints
//! the size of the failed request to standard error.

use std::fmt::{Arguments, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, anyhow};
use metrics::{counter, gauge};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use crate::http::Failure;
use crate::prover::{Made, Prover, Request};
use crate::queue::{MemoryLimit, Queue, mib};
use crate::{MIB, Options, rss_bytes};

pub struct Service {
    pub options: Options,
    prover: Arc<Prover>,
    queue: Mutex<Queue>,
    /// Wakes the waiting requests after each change to the queue.
    changed: Notify,
}

impl Service {
    pub fn new(options: Options) -> anyhow::Result<Arc<Self>> {
        let (slots, limit_bytes) = (usize::from(options.proofs), options.limit_bytes());
        let (budget, limit) = (options.isolate.unwrap_or(0), limit_bytes / MIB);
        anyhow::ensure!(
            slots * budget <= limit,
            "{slots} workers with {budget} MiB each do not fit below the limit of {limit} MiB: use fewer --proofs or a \
             smaller budget"
        );
        let memory = MemoryLimit { limit_bytes, outside_bytes: rss_bytes(), base_bytes: 0 };
        let (places, memory) = (options.queue.into(), options.isolate.is_none().then_some(memory));
        let mut queue = Queue { slots, places, memory, ..Queue::default() };
        let prover = Arc::new(Prover::new());
        if options.isolate.is_none() {
            // Makes a small proof to measure its peak. The peaks of larger sizes are estimated from it, so even the first request for a
            // size that cannot fit is refused.
            let log_rows = Request::FIRST_LOG_ROWS;
            queue.peaks.insert(log_rows, prover.make(&Request { log_rows, seed: 0 })?.peak_bytes);
        }
        for outcome in ["done", "failed", "cancelled", "rejected"] {
            counter!("service_proofs_total", "outcome" => outcome).absolute(0);
        }
        Ok(Arc::new(Self { options, prover, queue: Mutex::new(queue), changed: Notify::new() }))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the request's turn, then makes its proof. Dropping the future cancels the request: a waiting proof leaves the queue, and a
    /// worker is killed, but a proof that runs in this process is finished and then discarded.
    pub async fn prove(self: &Arc<Self>, request: Request) -> Result<Made, Failure> {
        let mut outcome = Outcome("rejected");
        let log_rows = request.log_rows;
        let ticket = Ticket { id: self.queue().join(log_rows)?, service: Arc::clone(self) };
        outcome.0 = "cancelled";
        loop {
            let changed = self.changed.notified();
            if self.queue().start(ticket.id, log_rows).inspect_err(|_| outcome.0 = "rejected")? {
                break;
            }
            changed.await;
        }
        // Wakes the other requests, because another proof is now first in the queue.
        self.changed.notify_waiters();
        let made = self.make(ticket, request).await;
        outcome.0 = if made.is_ok() { "done" } else { "failed" };
        made
    }

    async fn make(&self, ticket: Ticket, request: Request) -> Result<Made, Failure> {
        if let Some(budget_mib) = self.options.isolate {
            return make_in_worker(&self.options, budget_mib, &request).await;
        }
        let prover = Arc::clone(&self.prover);
        // The proof's thread opens the phase, so only this thread and rayon's workers allocate in the arena. The thread owns the ticket
        // until the proof ends, even if the client disconnects.
        let made = spawn_blocking(move || {
            let mut made = prover.make(&request)?;
            made.is_alone = ticket.end(Some(made.peak_bytes));
            anyhow::Ok(made)
        });
        // The outer result is an error if the proof panicked.
        Ok(made.await??)
    }

    /// Stops starting proofs and refuses the waiting ones.
    pub fn stop(&self) {
        self.queue().is_stopping = true;
        self.changed.notify_waiters();
    }

    /// Returns the current memory values in bytes, with the names of their metrics.
    fn memory(&self, queue: &Queue) -> Vec<(&'static str, usize)> {
        let reserved = queue.reserved_bytes();
        let mut memory = vec![("service_limit_bytes", self.options.limit_bytes()), ("service_rss_bytes", rss_bytes())];
        memory.push(("service_reserved_bytes", reserved));
        memory.extend(self.options.isolate.map(|budget| ("service_budget_bytes", budget * MIB)));
        if let Some(limit) = &queue.memory {
            memory.push(("service_outside_bytes", limit.outside_bytes));
            memory.push(("service_base_bytes", limit.base_bytes));
            memory.push(("service_free_bytes", limit.for_proofs_bytes().saturating_sub(reserved)));
        }
        memory
    }

    /// Sets the metrics to their current values.
    pub fn record_metrics(&self) {
        zk_alloc::record_metrics();
        let queue = self.queue();
        gauge!("service_waiting_proofs").set(queue.waiting.len() as f64);
        gauge!("service_running_proofs").set(queue.running.len() as f64);
        self.memory(&queue).into_iter().for_each(|(name, bytes)| gauge!(name).set(bytes as f64));
    }

    /// Returns the text of the page `/memory`: memory use, the running proofs, and the waiting proofs with the reason why each one waits.
    pub fn page(&self) -> String {
        let (queue, mut page) = (self.queue(), String::new());
        let mut line = |line: Arguments<'_>| _ = writeln!(page, "{line}");
        for (name, bytes) in self.memory(&queue) {
            line(format_args!("{name:<28} {:>12}", mib(bytes)));
        }
        for (log_rows, bytes) in &queue.peaks {
            line(format_args!("largest peak of 2^{log_rows:<10} {:>12}", mib(*bytes)));
        }
        let running = queue.running.iter().map(|running| (running, mib(running.reserved_bytes)));
        for (title, proofs) in [("running", running.collect::<Vec<_>>()), ("waiting", queue.waits().collect())] {
            line(format_args!("{title}"));
            for (proof, text) in proofs {
                let seconds = proof.since.elapsed().as_secs_f64();
                line(format_args!("  #{} 2^{}, for {seconds:.1} s: {text}", proof.id, proof.log_rows));
            }
        }
        line(format_args!("\nzk-alloc\n{}", zk_alloc::stats()));
        page
    }
}

/// A proof's place in the queue, from the request's arrival until the proof ends. Dropping the ticket removes the proof from the queue.
struct Ticket {
    service: Arc<Service>,
    id: u64,
}

impl Ticket {
    /// Removes the proof from the queue, and measures the memory outside of proofs. Returns whether the proof ran and no other proof
    /// overlapped it.
    fn end(&self, peak_bytes: Option<usize>) -> bool {
        let mut queue = self.service.queue();
        let is_alone = queue.leave(self.id, peak_bytes);
        let is_idle = queue.running.is_empty();
        if let Some(memory) = &mut queue.memory {
            let stats = zk_alloc::stats();
            // A lower bound: `resident_bytes` includes pages of the arena that nothing has touched yet, and RSS does not.
            memory.outside_bytes = memory.outside_bytes.max(rss_bytes().saturating_sub(stats.resident_bytes));
            if is_idle {
                memory.base_bytes = stats.live_bytes;
            }
        }
        self.service.changed.notify_waiters();
        is_alone
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Counts a request under its outcome when dropped, so requests whose client disconnects are counted too.
struct Outcome(&'static str);

impl Drop for Outcome {
    fn drop(&mut self) {
        counter!("service_proofs_total", "outcome" => self.0).increment(1);
    }
}

/// The main function of a worker process: makes one proof.
pub fn work(budget_bytes: usize) -> anyhow::Result<()> {
    let limit = |resource, bytes: usize| {
        setrlimit(resource, Rlimit { current: Some(bytes as u64), maximum: getrlimit(resource).maximum })
    };
    limit(Resource::Data, budget_bytes).with_context(|| format!("limiting a worker to {budget_bytes} bytes"))?;
    // A worker that exceeds its budget aborts. Its core file would contain all of its memory.
    limit(Resource::Core, 0).context("turning core files off")?;
    let request = serde_json::from_reader(std::io::stdin()).context("reading the request")?;
    serde_json::to_writer(std::io::stdout(), &Prover::new().make(&request)?).context("writing the answer")
}

/// Makes a proof in a worker. Dropping the future kills the worker immediately.
async fn make_in_worker(options: &Options, budget_mib: usize, request: &Request) -> Result<Made, Failure> {
    let mut command = Command::new(std::env::current_exe().context("finding this program")?);
    command.args(["--worker", "--isolate", &budget_mib.to_string()]);
    // Makes a failed allocation print one line without a backtrace.
    command.env("RUST_BACKTRACE", "0");
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(options.proofs.into());
        command.env("RAYON_NUM_THREADS", threads.to_string());
    }
    // Ctrl-C in a terminal signals the whole process group. Each worker gets its own group, so the service can still finish its running
    // proofs.
    command.process_group(0).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting a worker")?;
    counter!("service_worker_processes_total").increment(1);
    if let Some(mut requests) = child.stdin.take() {
        // This fails if the worker has already exited. The worker's output gives the reason.
        let _ = requests.write_all(&serde_json::to_vec(request)?).await;
    }
    let output = child.wait_with_output().await.context("waiting for the worker")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    stderr.lines().for_each(|line| eprintln!("worker: {line}"));
    if let Ok(made) = serde_json::from_slice(&output.stdout) {
        return Ok(made);
    }
    let refused = stderr.lines().find_map(|line| line.strip_prefix("memory allocation of ")?.split(' ').next());
    let Some(refused_bytes) = refused.and_then(|bytes| bytes.parse().ok()) else {
        // The last line of a panic is its message.
        let last_line = stderr.lines().last().unwrap_or_default();
        return Err(anyhow!("its worker was lost: {}: {last_line}", output.status).into());
    };
    let (refused, budget) = (mib(refused_bytes), mib(budget_mib * MIB));
    Err(Failure::over_memory(
        request.log_rows,
        format!("its worker could not allocate {refused} more within its budget of {budget}"),
    ))
}
