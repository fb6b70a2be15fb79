//! The service: the queue of proofs, the ones that run, and the answers to those who wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::{Notify, oneshot};

use crate::admission::{Ledger, Next, Room};
use crate::failure::Failure;
use crate::peaks::Peaks;
use crate::pool::Pool;
use crate::prover::{Made, Prover, rounded_ms};
use crate::record::{self, Outcome};
use crate::request::{Request, Size};
use crate::settings::Settings;
use crate::{memory, worker};

/// Where proofs are made.
pub enum Engine {
    /// In this process.
    Here(Arc<Prover>),
    /// In worker processes, each with a budget.
    Workers(Arc<Pool>),
}

pub struct Service {
    pub settings: Settings,
    pub engine: Engine,
    state: Mutex<State>,
}

pub struct State {
    pub ledger: Ledger<Job>,
    pub peaks: Peaks,
    pub room: Room,
    last_id: u64,
    is_stopping: bool,
    /// The memory outside of the arena before the first proof.
    first_outside_bytes: usize,
    /// The time that the last proof took.
    last_proof: Duration,
}

/// A request in the queue or at work.
#[derive(Debug)]
pub struct Job {
    pub request: Request,
    /// When it joined the queue, and when it started.
    pub joined: Instant,
    pub started: Option<Instant>,
    /// Whether the client has gone away.
    pub is_cancelled: bool,
    cancelled: Arc<Notify>,
    reply: oneshot::Sender<Result<Answer, Failure>>,
}

/// The answer to a request whose proof was made and verified.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub id: u64,
    #[serde(flatten)]
    pub size: Size,
    pub seed: u64,
    pub queued_ms: f64,
    #[serde(flatten)]
    pub made: Made,
    /// Whether no other proof ran in the same process, so that `peak_bytes` is this proof's own.
    pub is_alone: bool,
}

impl Service {
    pub fn new(settings: Settings, engine: Engine) -> Arc<Self> {
        let first_outside_bytes = memory::rss_bytes();
        let room = match engine {
            Engine::Here(_) => {
                Room { limit_bytes: settings.limit_bytes(), outside_bytes: first_outside_bytes, base_bytes: 0 }
            }
            Engine::Workers(_) => Room::UNBOUNDED,
        };
        let state = State {
            ledger: Ledger::new(settings.slots(), settings.queue.into()),
            peaks: Peaks::default(),
            room,
            last_id: 0,
            is_stopping: false,
            first_outside_bytes,
            last_proof: Duration::ZERO,
        };
        Arc::new(Self { settings, engine, state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peak that the ledger reckons with. A worker's budget bounds its proof, so there nothing is reserved.
    pub fn reserve_for(&self, peaks: &Peaks, size: Size) -> Option<usize> {
        match self.engine {
            Engine::Here(_) => peaks.known(size),
            Engine::Workers(_) => Some(0),
        }
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// The queue is full, the proof is too large, or the service is shutting down.
    pub fn submit(self: &Arc<Self>, request: Request) -> Result<Ticket, Failure> {
        let joined = self.join(request);
        if joined.as_ref().is_err_and(Failure::is_rejection) {
            record::count(Outcome::Rejected);
        }
        let ticket = joined?;
        self.start_ready();
        Ok(ticket)
    }

    fn join(self: &Arc<Self>, request: Request) -> Result<Ticket, Failure> {
        let mut state = self.state();
        if state.is_stopping {
            return Err(Failure::Stopping);
        }
        if matches!(self.engine, Engine::Here(_)) {
            state.fit(request.size)?;
        }
        state.last_id += 1;
        let id = state.last_id;
        let (reply, answer) = oneshot::channel();
        let job = Job {
            request,
            joined: Instant::now(),
            started: None,
            is_cancelled: false,
            cancelled: Arc::new(Notify::new()),
            reply,
        };
        if state.ledger.join(id, request.size, job).is_err() {
            return Err(state.queue_full(self.settings.slots()));
        }
        Ok(Ticket { id, service: Arc::clone(self), answer })
    }

    /// Starts all proofs that may start now.
    fn start_ready(self: &Arc<Self>) {
        loop {
            let mut guard = self.state();
            let state = &mut *guard;
            let next = state.ledger.next(&state.room, |size| self.reserve_for(&state.peaks, size));
            match next {
                None => return,
                Some(Next::Refuse { size, need_bytes, job }) => {
                    let failure = state.too_large(size, need_bytes, false);
                    drop(guard);
                    record::count(Outcome::Rejected);
                    let _ = job.reply.send(Err(failure));
                }
                Some(Next::Start(id)) => {
                    let Some(running) = state.ledger.running_mut(id) else { continue };
                    running.job.started = Some(Instant::now());
                    let (request, cancelled) = (running.job.request, Arc::clone(&running.job.cancelled));
                    drop(guard);
                    self.start(id, request, cancelled);
                }
            }
        }
    }

    fn start(self: &Arc<Self>, id: u64, request: Request, cancelled: Arc<Notify>) {
        let service = Arc::clone(self);
        match &self.engine {
            Engine::Here(prover) => {
                let prover = Arc::clone(prover);
                let prove = move || {
                    let outcome = match worker::caught(|| prover.make(&request)) {
                        Ok(made) => made.map_err(|error| Failure::Prover(format!("{error:#}"))),
                        Err(panic) => Err(Failure::Panicked(panic)),
                    };
                    service.finish(id, outcome);
                };
                // A thread of its own: only it and rayon's workers allocate in the arena, and never a thread of tokio.
                if let Err(error) = thread::Builder::new().name(format!("proof-{id}")).spawn(prove) {
                    self.finish(id, Err(Failure::Prover(format!("its thread did not start: {error}"))));
                }
            }
            Engine::Workers(pool) => {
                let pool = Arc::clone(pool);
                tokio::spawn(async move {
                    let mut lease = pool.lease().await;
                    let outcome = tokio::select! {
                        outcome = lease.make(&request) => outcome,
                        () = cancelled.notified() => Err(Failure::Cancelled),
                    };
                    if matches!(outcome, Err(Failure::Cancelled)) {
                        lease.end().await;
                    }
                    service.finish(id, outcome);
                    if let Err(error) = lease.warm().await {
                        eprintln!("a worker did not start: {error:#}");
                        lease.end().await;
                    }
                });
            }
        }
    }

    /// Takes in the outcome of a running proof, answers, and starts the next ones.
    fn finish(self: &Arc<Self>, id: u64, outcome: Result<Made, Failure>) {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(running) = state.ledger.finish(id) else { return };
        let (size, job) = (running.size, running.job);
        // The phases of workers never overlap.
        let is_alone = running.is_alone || matches!(self.engine, Engine::Workers(_));
        if let (Ok(made), true) = (&outcome, is_alone) {
            state.peaks.learn(size, made.peak_bytes);
        }
        let started = job.started.unwrap_or(job.joined);
        state.last_proof = started.elapsed();
        if matches!(self.engine, Engine::Here(_)) {
            state.measure();
        }
        drop(guard);
        record::count(match (&outcome, job.is_cancelled) {
            (_, true) => Outcome::Cancelled,
            (Ok(_), false) => Outcome::Done,
            (Err(_), false) => Outcome::Failed,
        });
        let queued_ms = rounded_ms(started.duration_since(job.joined));
        let answer = outcome.map(|made| Answer { id, size, seed: job.request.seed, queued_ms, made, is_alone });
        // If the client has gone away, nobody receives it.
        let _ = job.reply.send(answer);
        self.start_ready();
    }

    /// Takes a request out of the queue, or marks its running proof. A worker that makes it is ended; a proof in this
    /// process is finished and thrown away.
    fn cancel(self: &Arc<Self>, id: u64) {
        let mut state = self.state();
        if state.ledger.leave(id).is_some() {
            drop(state);
            record::count(Outcome::Cancelled);
            self.start_ready();
        } else if let Some(running) = state.ledger.running_mut(id) {
            running.job.is_cancelled = true;
            running.job.cancelled.notify_one();
        }
    }

    /// Starts no more proofs, and refuses those that wait.
    pub fn stop(&self) {
        let mut state = self.state();
        state.is_stopping = true;
        let waiting: Vec<_> = state.ledger.drain().collect();
        drop(state);
        for waiting in waiting {
            record::count(Outcome::Rejected);
            let _ = waiting.job.reply.send(Err(Failure::Stopping));
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Waits until no proof runs.
    pub async fn idle(&self) {
        while !self.state().ledger.is_idle() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl State {
    /// Whether a proof of this size can ever start.
    fn fit(&self, size: Size) -> Result<(), Failure> {
        let known = self.peaks.known(size).map(|bytes| (bytes, false));
        match known.or_else(|| self.peaks.estimate(size).map(|bytes| (bytes, true))) {
            Some((need_bytes, is_estimate)) if !self.room.fits(need_bytes) => {
                Err(self.too_large(size, need_bytes, is_estimate))
            }
            _ => Ok(()),
        }
    }

    fn too_large(&self, size: Size, need_bytes: usize, is_estimate: bool) -> Failure {
        let (limit_bytes, room_bytes) = (self.room.limit_bytes, self.room.for_proofs_bytes());
        Failure::TooLarge { size, need_bytes, limit_bytes, room_bytes, is_estimate }
    }

    fn queue_full(&self, slots: usize) -> Failure {
        let waiting = self.ledger.waiting_count();
        let wait = self.last_proof.as_secs_f64() * waiting.max(1) as f64 / slots as f64;
        Failure::QueueFull { waiting, retry_s: wait.ceil().clamp(1.0, 3600.0) as u64 }
    }

    /// Measures the memory that belongs to no proof.
    fn measure(&mut self) {
        let stats = zk_alloc::stats();
        // A part of the arena may not be touched yet, and be missing in RSS. So this is a lower bound.
        let outside_bytes = memory::rss_bytes().saturating_sub(stats.resident_bytes);
        if self.ledger.is_idle() {
            self.room.base_bytes = stats.live_bytes;
            self.room.outside_bytes = outside_bytes.max(self.first_outside_bytes);
        } else {
            self.room.outside_bytes = outside_bytes.max(self.room.outside_bytes);
        }
    }
}

/// A request of a client. Dropped without an answer, it is cancelled.
pub struct Ticket {
    id: u64,
    service: Arc<Service>,
    answer: oneshot::Receiver<Result<Answer, Failure>>,
}

impl Ticket {
    /// Waits for the proof.
    ///
    /// # Errors
    /// There is none: it failed, or took too long.
    pub async fn answer(mut self) -> Result<Answer, Failure> {
        let timeout = self.service.settings.timeout();
        match tokio::time::timeout(timeout, &mut self.answer).await {
            Ok(answer) => answer.unwrap_or(Err(Failure::Cancelled)),
            Err(_) => Err(Failure::TimedOut(timeout.as_secs())),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.service.cancel(self.id);
    }
}
