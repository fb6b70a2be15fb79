//! The driver's side of one child: starts it, sends requests, applies time limits, ends it. While it waits, the driver checks for Ctrl-C,
//! SIGTERM and SIGHUP. After one of them it ends the children and writes the samples measured so far.

use crate::arms::{Arm, Variables};
use crate::machine::BuildInfo;
use crate::protocol::{Identity, REPLAY, Reply, Request, line};
use crate::sample::{Proved, Sample};
use crate::workloads::Concurrent;
use anyhow::Context;
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a child may take to exit after its stdin closes.
const EXIT_PATIENCE: Duration = Duration::from_secs(20);
/// Number of lines retained from the end of a child's stderr.
const STDERR_LINES: usize = 20;
/// Longest text that a failure's reason quotes.
const QUOTED_CHARS: usize = 200;

/// Why a child gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot start {}: {source}", binary.display())]
    Start { binary: PathBuf, source: io::Error },
    #[error("{0}")]
    Died(String),
    #[error("hung: no answer within {} s, killed", limit.as_secs())]
    Hung { limit: Duration },
    #[error("answered garbage: {0:?}, killed")]
    Garbage(String),
    #[error("{0}")]
    Workload(String),
    /// The user asked to stop; the child did not fail.
    #[error("interrupted")]
    Interrupted,
}

/// A running child. Dropping it kills the process.
pub(crate) struct ChildProcess {
    binary: PathBuf,
    child: Child,
    /// The lines of its stdout. The channel disconnects when the child closes its stdout.
    answers: Receiver<String>,
    stderr: Option<JoinHandle<VecDeque<String>>>,
    interrupt: Interrupt,
}

impl ChildProcess {
    /// Starts `binary` with `environment` added to the driver's own.
    pub(crate) fn start(binary: &Path, environment: &Variables, interrupt: &Interrupt) -> Result<Self, Failure> {
        let mut child = Command::new(binary)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal sends Ctrl-C to the driver's whole process group. In its own group the child does not die of it,
            // so the driver does not mistake the interrupt for a failure.
            .process_group(0)
            .spawn()
            .map_err(|source| Failure::Start { binary: binary.to_owned(), source })?;
        let (sender, answers) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // A line that is not valid text counts as garbage, so it must be forwarded too.
            let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
            // The send fails only if the receiver is gone.
            let mut forward = move |line: Vec<u8>| sender.send(String::from_utf8_lossy(&line).into_owned()).ok();
            thread::spawn(move || lines.into_iter().try_for_each(&mut forward));
        }
        let stderr = child.stderr.take().map(|stderr| thread::spawn(move || last_lines(stderr)));
        Ok(Self { binary: binary.to_owned(), child, answers, stderr, interrupt: interrupt.clone() })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sets the workload up in the child and returns the arm's identity. Fails if the child was built from other sources or with other
    /// flags than the driver, because the report would attribute its figures to the wrong build.
    pub(crate) fn set_up(&mut self, request: &Request, limit: Duration) -> Result<Identity, Failure> {
        match self.ask(request, limit)? {
            Reply::Ready(identity) if identity.build == BuildInfo::current() => Ok(identity),
            Reply::Ready(_) => {
                let (binary, again) = (self.binary.display(), "`cargo build --release --bins` builds all");
                Err(Failure::Workload(format!("not built from prove-bench's sources and flags: {binary} ({again})")))
            }
            other => Err(self.unexpected(other)),
        }
    }

    /// Makes and verifies one proof. Returns its sample and, if the proof was refused, the reason.
    pub(crate) fn prove(&mut self, round: u32, seed: u64, limit: Duration) -> Result<Proved, Failure> {
        match self.ask(&Request::Prove { round, seed }, limit)? {
            Reply::Proved { sample, refusal } => Ok((sample, refusal)),
            other => Err(self.unexpected(other)),
        }
    }

    /// Lets the child exit by itself and returns the last lines of its stderr. A failing exit fails the arm.
    pub(crate) fn finish(mut self) -> Result<Vec<String>, Failure> {
        drop(self.child.stdin.take());
        match self.exit_status(EXIT_PATIENCE) {
            Some(status) if status.success() => Ok(self.stderr_tail()),
            Some(status) => Err(self.died(status, " while exiting")),
            None => Err(Failure::Hung { limit: EXIT_PATIENCE }),
        }
    }

    fn ask(&mut self, request: &Request, limit: Duration) -> Result<Reply, Failure> {
        let sent = line(request).ok().and_then(|line| self.child.stdin.as_mut()?.write_all(line.as_bytes()).ok());
        if sent.is_none() {
            return Err(self.gone());
        }
        let since = Instant::now();
        loop {
            match self.answers.recv_timeout(limit.saturating_sub(since.elapsed()).min(POLL)) {
                Ok(line) => return serde_json::from_str(&line).map_err(|_| self.garbage(&line)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) if self.interrupt.is_raised() => return Err(Failure::Interrupted),
                Err(RecvTimeoutError::Timeout) if since.elapsed() < limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Err(Failure::Hung { limit });
                }
            }
        }
    }

    fn unexpected(&mut self, reply: Reply) -> Failure {
        match reply {
            Reply::Failed { reason } => Failure::Workload(reason),
            other => self.garbage(&format!("{other:?}")),
        }
    }

    fn garbage(&mut self, answer: &str) -> Failure {
        self.kill();
        Failure::Garbage(answer.chars().take(QUOTED_CHARS).collect())
    }

    /// The failure of a child whose pipe closed.
    fn gone(&mut self) -> Failure {
        match self.exit_status(EXIT_PATIENCE) {
            Some(status) => self.died(status, ""),
            None => Failure::Died("closed its output without exiting, killed".into()),
        }
    }

    fn died(&mut self, status: ExitStatus, when: &str) -> Failure {
        Failure::Died(how_it_died(status, when, self.stderr_tail()))
    }

    /// Waits for the exit status of a child that is about to exit. After `patience`, kills the child and returns
    /// `None`.
    fn exit_status(&mut self, patience: Duration) -> Option<ExitStatus> {
        let since = Instant::now();
        while since.elapsed() < patience {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        None
    }

    fn stderr_tail(&mut self) -> Vec<String> {
        self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default().into()
    }

    fn kill(&mut self) {
        // Both calls fail only if the child is already gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Longest wait for a proof or a replay outside of a run, where no earlier times exist to derive a limit from.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Makes `proofs` proofs outside of a run, in a new child process of `arm`, whose binary lies in `folder`. The child gets the arm's
/// environment variables and those in `more`. Prints a line for each proof. The workload is given by its prover, name and size.
pub(crate) fn prove(
    (folder, arm): (&Path, &Arm),
    more: &Variables,
    (prover, workload, log_rows): (&str, &str, u32),
    proofs: u32,
    interrupt: &Interrupt,
) -> Result<(Identity, Vec<Sample>), Failure> {
    let environment = [&arm.variables(), more].concat();
    let mut child = ChildProcess::start(&folder.join(arm.binary), &environment, interrupt)?;
    let setup = Request::Setup {
        arm: arm.name.into(),
        prover: prover.into(),
        workload: workload.into(),
        log_rows,
        concurrent: Concurrent::default(),
        requires: arm.requires(),
        stack_bytes: 0,
    };
    let identity = child.set_up(&setup, PATIENCE)?;
    let mut samples = Vec::new();
    for number in 1..=proofs {
        let (sample, refusal) = child.prove(number - 1, u64::from(number - 1), PATIENCE)?;
        if let Some(reason) = refusal {
            return Err(Failure::Workload(format!("proof {number} was refused: {reason}")));
        }
        let noun = if prover == REPLAY { "replay" } else { "proof" };
        eprintln!("{noun} {number} of {proofs}: verified, {:.1} s", sample.wall_ns as f64 / 1e9);
        samples.push(sample);
    }
    child.finish()?;
    Ok((identity, samples))
}

/// Describes how a process failed, and quotes the end of its stderr.
pub(crate) fn how_it_died(status: ExitStatus, when: &str, stderr: Vec<String>) -> String {
    let how = match (status.signal().map(Signal::try_from), status.code()) {
        (Some(Ok(Signal::SIGKILL)), _) => "killed by SIGKILL (out of memory?)".into(),
        (Some(Ok(signal)), _) => format!("died of {}", signal.as_str()),
        (_, Some(code)) => format!("exited with code {code}"),
        _ => format!("ended with {status}"),
    };
    let tail: Vec<_> = stderr.into_iter().filter(|line| !line.trim().is_empty()).collect();
    // Three lines cover a panic: place, message, and the backtrace hint.
    let last_lines: String = tail[tail.len().saturating_sub(3)..].join(" / ").chars().take(QUOTED_CHARS).collect();
    if last_lines.is_empty() { format!("{how}{when}") } else { format!("{how}{when}: {last_lines}") }
}

/// The last lines that a process writes to stderr. Returns when the process closes it.
pub(crate) fn last_lines(stderr: impl Read) -> VecDeque<String> {
    let mut kept = VecDeque::with_capacity(STDERR_LINES);
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        if kept.len() == STDERR_LINES {
            kept.pop_front();
        }
        kept.push_back(String::from_utf8_lossy(&line).into_owned());
    }
    kept
}

/// Time between two checks for an interrupt while the driver waits.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// Whether the user asked to stop. Clones share one flag.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Returns an interrupt that the process's signals raise. Call it once per process.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || raised.raise()).context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// Whether the user asked to stop.
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Sleeps for `time`, or until the interrupt is raised.
    pub(crate) fn sleep(&self, time: Duration) {
        let since = Instant::now();
        while !self.is_raised() && since.elapsed() < time {
            thread::sleep(time.saturating_sub(since.elapsed()).min(POLL));
        }
    }

    fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_at_its_time_or_at_an_interrupt() {
        let (interrupt, since) = (Interrupt::default(), Instant::now());
        interrupt.sleep(POLL * 2);
        assert!(since.elapsed() >= POLL * 2);
        let also = interrupt.clone();
        let raiser = thread::spawn(move || {
            thread::sleep(POLL / 2);
            also.raise();
        });
        interrupt.sleep(Duration::from_secs(3600));
        raiser.join().unwrap();
        assert!(interrupt.is_raised() && since.elapsed() < Duration::from_secs(60));
    }
}
