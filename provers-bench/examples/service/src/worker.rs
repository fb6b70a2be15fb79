//! A worker process of `--isolate`, from the inside: requests come on standard input, one JSON line each, and answers go
//! to standard output.

use std::any::Any;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::budget::{self, Refusal};
use crate::prover::{Made, Prover};
use crate::request::Request;

/// A line to a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    Prove(Request),
    Release,
    Soften,
}

/// The answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tell {
    /// It can prove. This comes once, unasked.
    Ready,
    Made(Made),
    Panicked(String),
    Failed(String),
    /// The worker aborts after this.
    OverBudget(Refusal),
    /// The bytes that it purged.
    Purged(usize),
}

/// A line from a worker.
#[derive(Debug, Serialize, Deserialize)]
pub struct Said {
    pub tell: Tell,
    pub figures: Figures,
}

/// The memory of a worker, in bytes of the arena.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    pub live_bytes: usize,
    pub resident_bytes: usize,
}

impl Figures {
    /// Those of this process. Allocates nothing.
    pub fn now() -> Self {
        let stats = zk_alloc::stats();
        Self { live_bytes: stats.live_bytes, resident_bytes: stats.resident_bytes }
    }
}

/// Proves until standard input ends.
///
/// # Errors
/// The budget or a pipe.
pub fn run(budget_bytes: usize) -> anyhow::Result<()> {
    budget::set(budget_bytes)?;
    zk_alloc_plonky3::init();
    let prover = Prover::default();
    say(Tell::Ready)?;
    for line in io::stdin().lines() {
        let line = line.context("reading a request")?;
        let tell = match serde_json::from_str(&line).with_context(|| format!("reading the request {line:?}"))? {
            Ask::Prove(request) => match caught(|| prover.make(&request)) {
                Ok(Ok(made)) => Tell::Made(made),
                Ok(Err(error)) => Tell::Failed(format!("{error:#}")),
                Err(panic) => Tell::Panicked(panic),
            },
            Ask::Release => Tell::Purged(zk_alloc::release()),
            Ask::Soften => Tell::Purged(zk_alloc::soften()),
        };
        say(tell)?;
    }
    Ok(())
}

fn say(tell: Tell) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(&Said { tell, figures: Figures::now() })?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("writing an answer")
}

/// Runs `f`; if it panics, returns the message of the panic.
pub fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    // After a panic, nothing of the proof is used again. The prover's caches are filled as a whole or not at all.
    catch_unwind(AssertUnwindSafe(f)).map_err(message)
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
