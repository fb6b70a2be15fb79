//! The worker processes of `--isolate`, from the outside: started before the first request, replaced when one is lost.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, anyhow, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::Failure;
use crate::prover::Made;
use crate::request::Request;
use crate::worker::{Ask, Figures, Said, Tell};

/// The longest line that a worker may send.
const MOST_LINE_BYTES: u64 = 64 << 10;

/// The workers, idle and busy.
#[derive(Debug)]
pub struct Pool {
    budget_bytes: usize,
    threads: usize,
    idle: Mutex<Vec<Slot>>,
    /// One permit for each idle slot.
    permits: Arc<Semaphore>,
    statuses: Mutex<Vec<Status>>,
}

/// The state of a slot, for people and metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// The process; `None` while there is none.
    pub pid: Option<u32>,
    pub is_busy: bool,
    /// Proofs that this process was asked for.
    pub proofs: u64,
    /// Processes that this slot has had.
    pub processes: u64,
    pub figures: Figures,
}

/// A place for one worker process.
#[derive(Debug)]
struct Slot {
    number: usize,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Whether it was asked for no proof yet.
    is_fresh: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Starts all workers.
    ///
    /// # Errors
    /// A worker did not start.
    pub async fn start(workers: usize, budget_bytes: usize) -> anyhow::Result<Arc<Self>> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let slots = (0..workers).map(|number| Slot { number, process: None });
        let pool = Arc::new(Self {
            budget_bytes,
            threads: (processors / workers).max(1),
            idle: Mutex::new(slots.collect()),
            permits: Arc::new(Semaphore::new(workers)),
            statuses: Mutex::new(vec![Status::default(); workers]),
        });
        let mut leases = Vec::new();
        for _ in 0..workers {
            let mut lease = pool.lease().await;
            lease.warm().await.with_context(|| format!("starting worker {} of {workers}", leases.len() + 1))?;
            leases.push(lease);
        }
        drop(leases);
        Ok(pool)
    }

    /// Takes an idle worker. Waits until there is one.
    pub async fn lease(self: &Arc<Self>) -> Lease {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        self.lease_with(permit)
    }

    fn lease_with(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Lease {
        let slot = lock(&self.idle).pop().expect("a permit stands for an idle slot");
        let number = slot.number;
        let lease = Lease { pool: Arc::clone(self), slot: Some(slot), _permit: permit };
        lease.pool.note(number, |status| status.is_busy = true);
        lease
    }

    /// Has all idle workers purge or soften their memory. Returns the bytes, and the number of workers.
    pub async fn purge(self: &Arc<Self>, is_soft: bool) -> (usize, usize) {
        let mut leases = Vec::new();
        while let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            leases.push(self.lease_with(permit));
        }
        let (mut bytes, mut workers) = (0, 0);
        for mut lease in leases {
            let ask = if is_soft { Ask::Soften } else { Ask::Release };
            match lease.ask(&ask).await {
                Ok(Tell::Purged(purged)) => {
                    bytes += purged;
                    workers += 1;
                }
                _ => lease.replace().await,
            }
        }
        (bytes, workers)
    }

    pub fn statuses(&self) -> Vec<Status> {
        lock(&self.statuses).clone()
    }

    fn note(&self, number: usize, change: impl FnOnce(&mut Status)) {
        if let Some(status) = lock(&self.statuses).get_mut(number) {
            change(status);
        }
    }

    async fn spawn(&self) -> anyhow::Result<Process> {
        let program = std::env::current_exe().context("finding this program, to start a worker")?;
        let mut command = Command::new(program);
        command.args(["worker", "--budget", &self.budget_bytes.to_string()]);
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            command.env("RAYON_NUM_THREADS", self.threads.to_string());
        }
        // Ctrl-C in a terminal reaches a whole process group. The service's running proofs finish after it.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a worker")?;
        let requests = child.stdin.take().context("a worker without standard input")?;
        let answers = BufReader::new(child.stdout.take().context("a worker without standard output")?);
        Ok(Process { child, requests, answers, is_fresh: true })
    }
}

/// A worker that makes one proof. Dropped, it is idle again.
#[derive(Debug)]
pub struct Lease {
    pool: Arc<Pool>,
    slot: Option<Slot>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The permit is released after this.
        if let Some(slot) = self.slot.take() {
            self.pool.note(slot.number, |status| status.is_busy = false);
            lock(&self.pool.idle).push(slot);
        }
    }
}

impl Lease {
    fn slot(&mut self) -> &mut Slot {
        self.slot.as_mut().expect("the slot is taken only when the lease is dropped")
    }

    /// Starts the process, if there is none.
    ///
    /// # Errors
    /// It did not start.
    pub async fn warm(&mut self) -> anyhow::Result<()> {
        let number = self.slot().number;
        if self.slot().process.is_some() {
            return Ok(());
        }
        let process = self.pool.spawn().await?;
        let pid = process.child.id();
        self.slot().process = Some(process);
        self.pool.note(number, |status| {
            *status = Status { pid, is_busy: true, processes: status.processes + 1, ..Status::default() };
        });
        match self.said().await {
            Ok(Tell::Ready) => Ok(()),
            Ok(other) => bail!("the worker began with {other:?}"),
            Err(error) => Err(error),
        }
    }

    /// Ends the process, and waits until its memory is free.
    pub async fn end(&mut self) -> Option<ExitStatus> {
        let number = self.slot().number;
        let mut process = self.slot().process.take()?;
        // A worker that reported a refusal is about to abort; a kill does not change that it ends.
        let _ = process.child.start_kill();
        let status = process.child.wait().await.ok();
        self.pool.note(number, |status| *status = Status { pid: None, figures: Figures::default(), ..*status });
        status
    }

    /// Ends the process and starts another. A failure is left to the next proof, which tries again and reports it.
    pub async fn replace(&mut self) {
        self.end().await;
        if let Err(error) = self.warm().await {
            eprintln!("a worker did not start: {error:#}");
            self.end().await;
        }
    }

    /// Makes a proof. If a used worker refuses it for its budget, a fresh one decides: memory that the arena has mapped
    /// for proofs of other sizes counts against the budget as well.
    pub async fn make(&mut self, request: &Request) -> Result<Made, Failure> {
        loop {
            self.warm().await.map_err(|error| Failure::WorkerLost(format!("{error:#}")))?;
            let number = self.slot().number;
            self.pool.note(number, |status| status.proofs += 1);
            let is_fresh = self.slot().process.as_mut().is_some_and(|process| std::mem::take(&mut process.is_fresh));
            return match self.ask(&Ask::Prove(*request)).await {
                Ok(Tell::Made(made)) => Ok(made),
                Ok(Tell::Panicked(message)) => Err(Failure::Panicked(message)),
                Ok(Tell::Failed(message)) => Err(Failure::Prover(message)),
                Ok(Tell::OverBudget(_)) if !is_fresh => {
                    self.end().await;
                    continue;
                }
                Ok(Tell::OverBudget(refusal)) => {
                    self.end().await;
                    Err(Failure::OverBudget { size: request.size, refusal })
                }
                Ok(other) => {
                    self.end().await;
                    Err(Failure::WorkerLost(format!("it answered {other:?}")))
                }
                Err(error) => {
                    let end = self.end().await.map_or(String::new(), |status| format!(" ({status})"));
                    Err(Failure::WorkerLost(format!("{error:#}{end}")))
                }
            };
        }
    }

    async fn ask(&mut self, ask: &Ask) -> anyhow::Result<Tell> {
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        let process = self.slot().process.as_mut().ok_or_else(|| anyhow!("there is no worker process"))?;
        process.requests.write_all(&line).await.context("asking the worker")?;
        self.said().await
    }

    async fn said(&mut self) -> anyhow::Result<Tell> {
        let process = self.slot().process.as_mut().ok_or_else(|| anyhow!("there is no worker process"))?;
        let mut line = Vec::new();
        let mut answers = (&mut process.answers).take(MOST_LINE_BYTES);
        let read = answers.read_until(b'\n', &mut line).await.context("reading the worker's answer")?;
        if read == 0 {
            bail!("it ended without an answer");
        }
        let said: Said = serde_json::from_slice(&line).context("understanding the worker's answer")?;
        let number = self.slot().number;
        self.pool.note(number, |status| status.figures = said.figures);
        Ok(said.tell)
    }
}
