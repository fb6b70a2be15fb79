//! The service: starts the proofs that may run, and answers those who wait.

use std::any::Any;
use std::fmt::{Arguments, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use metrics::{counter, gauge};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::http::Failure;
use crate::prover::{Made, Prover, Request};
use crate::queue::{Next, Queue, Room, mib};
use crate::worker::Workers;
use crate::{MIB, Options, rss_bytes};

pub struct Service {
    pub options: Options,
    prover: Arc<Prover>,
    workers: Option<Workers>,
    state: Mutex<State>,
}

struct State {
    queue: Queue<Job>,
    is_stopping: bool,
}

struct Job {
    request: Request,
    /// Closed if the client goes away.
    reply: oneshot::Sender<Result<Answer, Failure>>,
}

/// The answer to a request whose proof was made and verified.
#[derive(Debug, Serialize)]
pub struct Answer {
    id: u64,
    log_rows: u32,
    seed: u64,
    #[serde(flatten)]
    made: Made,
    /// Whether no other proof ran in the same process, so that `peak_bytes` is this proof's own.
    is_alone: bool,
}

impl Service {
    pub async fn new(options: Options) -> anyhow::Result<Arc<Self>> {
        let (slots, limit_bytes) = (usize::from(options.proofs), options.limit_bytes());
        let workers = match options.isolate {
            Some(budget) => {
                let limit = limit_bytes / MIB;
                anyhow::ensure!(
                    slots * budget <= limit,
                    "{slots} workers with {budget} MiB each do not fit below the limit of {limit} MiB: use fewer \
                     --proofs or a smaller budget"
                );
                Some(Workers::start(slots, budget * MIB).await?)
            }
            None => None,
        };
        let room = Room { limit_bytes, outside_bytes: rss_bytes(), base_bytes: 0 };
        let mut queue = Queue::new(slots, options.queue.into(), workers.is_none().then_some(room));
        let prover = Arc::new(Prover::new());
        if workers.is_none() {
            // Sizes that were never proved are estimated from this one, and refused if they can't fit.
            let request = Request { log_rows: Request::FIRST_LOG_ROWS, seed: 0, panic: false };
            let (prover, log_rows) = (Arc::clone(&prover), request.log_rows);
            let made = tokio::task::spawn_blocking(move || prover.make(&request)).await??;
            queue.learn(log_rows, made.peak_bytes);
        }
        let state = Mutex::new(State { queue, is_stopping: false });
        ["done", "failed", "cancelled", "rejected"].into_iter().for_each(|outcome| count(outcome, 0));
        Ok(Arc::new(Self { options, prover, workers, state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a proof, when it is its turn. A dropped future cancels it: it leaves the queue, or its worker is ended. A
    /// proof that runs in this process is finished and thrown away.
    pub async fn prove(self: &Arc<Self>, request: Request) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        let id = self.join(Job { request, reply }).inspect_err(|_| count("rejected", 1))?;
        let _guard = CancelOnDrop(self, id);
        self.start_ready();
        answer.await.unwrap_or_else(|_| Err(Failure::of_prover("it was lost")))
    }

    fn join(&self, job: Job) -> Result<u64, Failure> {
        let State { queue, is_stopping } = &mut *self.state();
        if *is_stopping {
            return Err(stopping());
        }
        let log_rows = job.request.log_rows;
        queue.fit(log_rows).map_err(|why| Failure::over_memory(log_rows, &why))?;
        let waiting = queue.waiting.len();
        let full = || {
            let text = format!("the queue is full ({waiting} waiting); try again later");
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        queue.join(log_rows, job).ok_or_else(full)
    }

    /// Starts all proofs that may start now.
    fn start_ready(self: &Arc<Self>) {
        let mut state = self.state();
        while let Some(next) = state.queue.next() {
            match next {
                Next::Refuse(why, Job { request, reply }) => {
                    count("rejected", 1);
                    let _ = reply.send(Err(Failure::over_memory(request.log_rows, &why)));
                }
                Next::Start(id, job) => _ = tokio::spawn(Arc::clone(self).run(id, job)),
            }
        }
    }

    async fn run(self: Arc<Self>, id: u64, Job { request, mut reply }: Job) {
        let outcome = match &self.workers {
            Some(workers) => tokio::select! {
                outcome = workers.make(&request) => outcome,
                () = reply.closed() => Err(Failure::of_prover("the client has gone away")),
            },
            None => {
                let prover = Arc::clone(&self.prover);
                // The thread opens a phase: only it and rayon's workers allocate in the arena.
                match tokio::task::spawn_blocking(move || prover.make(&request)).await {
                    Ok(made) => made.map_err(|error| Failure::of_prover(format!("{error:#}"))),
                    Err(error) => Err(Failure::of_prover(panic_message(error.into_panic()))),
                }
            }
        };
        let mut guard = self.state();
        let queue = &mut guard.queue;
        // The phases of workers never overlap.
        let is_alone = queue.finish(id, outcome.as_ref().ok().map(|made| made.peak_bytes)) || self.workers.is_some();
        let is_idle = queue.running.is_empty();
        if let Some(room) = &mut queue.room {
            let stats = zk_alloc::stats();
            // A part of the arena may not be touched yet, and be missing in RSS. So this is a lower bound.
            room.outside_bytes = room.outside_bytes.max(rss_bytes().saturating_sub(stats.resident_bytes));
            if is_idle {
                room.base_bytes = stats.live_bytes;
            }
        }
        drop(guard);
        let done_or_failed = if outcome.is_ok() { "done" } else { "failed" };
        count(if reply.is_closed() { "cancelled" } else { done_or_failed }, 1);
        let Request { log_rows, seed, .. } = request;
        // If the client has gone away, nobody receives it.
        let _ = reply.send(outcome.map(|made| Answer { id, log_rows, seed, made, is_alone }));
        self.start_ready();
    }

    /// Starts no more proofs, and refuses those that wait.
    pub fn stop(&self) {
        let mut state = self.state();
        state.is_stopping = true;
        for job in state.queue.drain() {
            count("rejected", 1);
            let _ = job.reply.send(Err(stopping()));
        }
    }

    /// Sets the metrics to their values of now.
    pub fn record_metrics(&self) {
        zk_alloc::record_metrics();
        let state = self.state();
        gauge!("service_waiting_proofs").set(state.queue.waiting.len() as f64);
        gauge!("service_running_proofs").set(state.queue.running.len() as f64);
        gauge!("service_reserved_bytes").set(state.queue.reserved_bytes() as f64);
        gauge!("service_limit_bytes").set(self.options.limit_bytes() as f64);
        gauge!("service_rss_bytes").set(rss_bytes() as f64);
        let processes = self.workers.as_ref().map_or(0, |workers| workers.processes.load(Ordering::Relaxed));
        counter!("service_worker_processes_total").absolute(processes);
    }

    /// `/memory`: where the memory is, what runs, what waits and why. For people.
    pub fn page(&self) -> String {
        let (state, stats, mut page) = (self.state(), zk_alloc::stats(), String::new());
        let queue = &state.queue;
        let mut rows = vec![("limit", self.options.limit_bytes()), ("RSS of this process", rss_bytes())];
        if let Some(budget) = self.options.isolate {
            rows.push(("budget of each worker", budget * MIB));
        }
        if let Some(room) = &queue.room {
            rows.extend([
                ("live in the arena", stats.live_bytes),
                ("retained for the next proof", stats.retained_bytes()),
                ("outside of the arena", room.outside_bytes),
                ("in the prover's caches", room.base_bytes),
                ("reserved by running proofs", queue.reserved_bytes()),
                ("free for another proof", room.for_proofs_bytes().saturating_sub(queue.reserved_bytes())),
            ]);
        }
        let mut line = |line: Arguments<'_>| _ = writeln!(page, "{line}");
        for (name, bytes) in rows {
            line(format_args!("{name:<28} {:>12}", mib(bytes)));
        }
        line(format_args!("\nlearned peaks"));
        for (log_rows, bytes) in queue.peaks() {
            line(format_args!("  2^{log_rows:<24} {:>12}", mib(bytes)));
        }
        line(format_args!("running"));
        for (id, running) in &queue.running {
            let seconds = running.since.elapsed().as_secs_f64();
            let reserved = running.reserved_bytes.map_or("alone, to learn its peak".into(), mib);
            line(format_args!("  #{id} 2^{}, for {seconds:.1} s: {reserved}", running.log_rows));
        }
        line(format_args!("waiting"));
        for (waiting, reason) in queue.waits() {
            let seconds = waiting.since.elapsed().as_secs_f64();
            line(format_args!("  #{} 2^{}, for {seconds:.1} s: {reason}", waiting.id, waiting.log_rows));
        }
        line(format_args!("\nzk-alloc\n{stats}"));
        page
    }
}

/// Takes a waiting proof out of the queue. A running one sees that its client has gone away.
struct CancelOnDrop<'a>(&'a Arc<Service>, u64);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.0.state().queue.leave(self.1).is_some() {
            count("cancelled", 1);
            self.0.start_ready();
        }
    }
}

fn stopping() -> Failure {
    Failure::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the service is shutting down and starts no more proofs; ask another one",
    )
}

fn count(outcome: &'static str, requests: u64) {
    counter!("service_proofs_total", "outcome" => outcome).increment(requests);
}

pub fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    format!("it panicked: {text}")
}
