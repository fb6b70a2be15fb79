//! Random load: proofs, cancellations, panics, purges, nonsense; and a count of the answers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use proving_service::client::{self, Reply};
use rand::{Rng, RngExt, SeedableRng, rngs::SmallRng};

use crate::child::Service;

/// The sizes of ordinary proofs. Each fits into a worker with 128 MiB.
const SIZES: [(&str, u32); 6] =
    [("poseidon2", 8), ("poseidon2", 10), ("poseidon2", 11), ("keccak", 8), ("keccak", 9), ("keccak", 10)];
/// A size that no budget up to 1 GiB has room for.
const TOO_LARGE: (&str, u32) = ("keccak", 15);
/// Different statements of each size. Few, so that each is proved often and its digests are compared.
const SEEDS: u64 = 4;

/// An action of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Prove,
    Cancel,
    Panic,
    OverBudget,
    Nonsense,
    Purge,
    Soften,
    Look,
}

impl Action {
    fn random(rng: &mut impl Rng, is_isolated: bool) -> Self {
        match rng.random_range(0..100) {
            0..68 => Self::Prove,
            68..78 => Self::Cancel,
            78..84 => Self::Panic,
            84..87 if is_isolated => Self::OverBudget,
            84..90 => Self::Nonsense,
            90..93 => Self::Purge,
            93..96 => Self::Soften,
            _ => Self::Look,
        }
    }

    /// Whether this is a right answer. The queue may be full for any proof.
    fn expects(self, status: u16) -> bool {
        match self {
            Self::Prove => matches!(status, 200 | 503),
            Self::Cancel => true,
            Self::Panic => matches!(status, 500 | 503),
            Self::OverBudget => matches!(status, 507 | 503),
            Self::Nonsense => matches!(status, 400 | 404 | 413 | 422),
            Self::Purge | Self::Soften | Self::Look => status == 200,
        }
    }
}

/// The answers, by action and status, and what was wrong.
#[derive(Debug, Default)]
pub struct Tally {
    answers: BTreeMap<(Action, u16), u64>,
    /// Requests whose client went away before the answer.
    cancelled: u64,
    wrong: u64,
    examples: Vec<String>,
}

impl Tally {
    /// Proofs that were answered.
    pub fn proofs(&self) -> u64 {
        self.answers
            .iter()
            .filter(|&(&(action, status), _)| action == Action::Prove && status == 200)
            .map(|(_, n)| n)
            .sum()
    }

    pub fn failures(&self) -> Vec<String> {
        let mut failures = self.examples.clone();
        if self.wrong > self.examples.len() as u64 {
            failures.push(format!("{} wrong answers in all", self.wrong));
        }
        if self.proofs() == 0 {
            failures.push("no proof was answered".to_owned());
        }
        failures
    }

    fn wrong(&mut self, text: String) {
        self.wrong += 1;
        if self.examples.len() < 10 {
            self.examples.push(text);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:>6} {:>9}", "request", "status", "answers")?;
        for ((action, status), count) in &self.answers {
            writeln!(f, "{:<12} {status:>6} {count:>9}", format!("{action:?}"))?;
        }
        writeln!(f, "{:<12} {:>6} {:>9}", "Cancel", "-", self.cancelled)?;
        writeln!(f, "{:<12} {:>6} {:>9}", "wrong", "", self.wrong)
    }
}

pub struct Load {
    address: SocketAddr,
    is_isolated: bool,
    seed: u64,
    /// Requests that may still be sent.
    left: AtomicU64,
    tally: Mutex<Tally>,
    /// The digest of each statement: its proof is the same each time.
    digests: Mutex<BTreeMap<(&'static str, u32, u64), String>>,
}

impl Load {
    pub fn new(service: &Service, seed: u64, requests: u64) -> Self {
        Self {
            address: service.address,
            is_isolated: service.settings.isolate,
            seed,
            left: AtomicU64::new(requests),
            tally: Mutex::default(),
            digests: Mutex::default(),
        }
    }

    /// Proves each size until the service knows its peak and has filled its caches.
    pub fn warm_up(&self) -> anyhow::Result<()> {
        for (kind, log_rows) in SIZES.into_iter().chain(SIZES) {
            let reply = self.post("/proofs", &body(kind, log_rows, 0, ""))?;
            ensure!(reply.status == 200, "{kind} 2^{log_rows}: {}", reply.body);
        }
        Ok(())
    }

    /// Sends load until the deadline; returns when every request was answered.
    pub fn run(&self, clients: u16, deadline: Instant) -> Tally {
        thread::scope(|scope| {
            for number in 0..clients {
                let rng = SmallRng::seed_from_u64(self.seed << 16 | u64::from(number));
                scope.spawn(move || self.client(rng, deadline));
            }
        });
        std::mem::take(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn client(&self, mut rng: SmallRng, deadline: Instant) {
        while Instant::now() < deadline {
            let take = |left: u64| left.checked_sub(1);
            if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                return;
            }
            let action = Action::random(&mut rng, self.is_isolated);
            let outcome = self.act(action, &mut rng);
            let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Ok(Some(reply)) => {
                    *tally.answers.entry((action, reply.status)).or_default() += 1;
                    if !action.expects(reply.status) {
                        tally.wrong(format!("{action:?}: {} {}", reply.status, reply.body));
                    }
                }
                Ok(None) => tally.cancelled += 1,
                Err(error) => tally.wrong(format!("{action:?}: {error:#}")),
            }
        }
    }

    /// Sends one request. Returns its answer, or `None` if this client went away.
    fn act(&self, action: Action, rng: &mut SmallRng) -> anyhow::Result<Option<Reply>> {
        let (kind, log_rows) = SIZES[rng.random_range(0..SIZES.len())];
        let seed = rng.random_range(0..SEEDS);
        let reply = match action {
            Action::Prove => {
                let reply = self.post("/proofs", &body(kind, log_rows, seed, ""))?;
                if reply.status == 200 {
                    self.compare((kind, log_rows, seed), &reply)?;
                }
                reply
            }
            Action::Cancel => {
                let stream = client::send(self.address, "POST", "/proofs", &body(kind, log_rows, seed, ""))?;
                thread::sleep(Duration::from_millis(rng.random_range(0..200)));
                drop(stream);
                return Ok(None);
            }
            Action::Panic => self.post("/proofs", &body(kind, log_rows, seed, r#","fault":"panic""#))?,
            Action::OverBudget => self.post("/proofs", &body(TOO_LARGE.0, TOO_LARGE.1, seed, ""))?,
            Action::Nonsense => match rng.random_range(0..4) {
                0 => self.post("/proofs", "{\"kind\":")?,
                1 => self.post("/proofs", &body("sha3", log_rows, seed, ""))?,
                2 => self.post("/proofs", &"x".repeat(5000))?,
                _ => self.post("/nowhere", "")?,
            },
            Action::Purge => self.post("/purge", "")?,
            Action::Soften => self.post("/soften", "")?,
            Action::Look => {
                let path = ["/memory", "/metrics", "/health"][rng.random_range(0..3)];
                client::request(self.address, "GET", path, "")?
            }
        };
        Ok(Some(reply))
    }

    /// Compares the digest of a proof with the first one of its statement.
    fn compare(&self, statement: (&'static str, u32, u64), reply: &Reply) -> anyhow::Result<()> {
        let json = reply.json();
        let digest = json["digest"].as_str().unwrap_or_default().to_owned();
        ensure!(digest.len() == 64, "{statement:?}: no digest in {}", reply.body);
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let first = digests.entry(statement).or_insert_with(|| digest.clone());
        ensure!(*first == digest, "{statement:?}: its proof was {first} and is {digest} now");
        Ok(())
    }

    fn post(&self, path: &str, body: &str) -> anyhow::Result<Reply> {
        Ok(client::request(self.address, "POST", path, body)?)
    }
}

fn body(kind: &str, log_rows: u32, seed: u64, more: &str) -> String {
    format!(r#"{{"kind":"{kind}","log_rows":{log_rows},"seed":{seed}{more}}}"#)
}
