//! The driver's side of one child: starts it, sends requests, enforces time limits, ends it. While the driver waits for a child, it checks
//! whether it has received Ctrl-C, SIGTERM or SIGHUP. If so, it ends the children and writes the samples measured so far.

use crate::arms::{Arm, Variables};
use crate::machine::BuildInfo;
use crate::protocol::{Identity, REPLAY, Reply, Request, line};
use crate::sample::{Proved, Sample};
use crate::workloads::Concurrent;
use anyhow::Context;
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Longest time that a child may take to exit after its stdin closes.
const EXIT_PATIENCE: Duration = Duration::from_secs(20);
/// Number of lines retained from the end of a child's output.
const LAST_LINES: usize = 20;
/// Maximum length of a line. Longer lines are split, so output without line feeds does not fill the memory.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Maximum number of characters of a process's output that a failure's reason quotes.
const QUOTED_CHARS: usize = 200;

/// Why a process did not give a usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The process failed, for this reason.
    #[error("{0}")]
    Failed(String),
    /// The user asked to stop; the process did not fail.
    #[error("interrupted")]
    Interrupted,
}

impl Failure {
    /// Describes the failure of a process that was killed after `limit`.
    pub(crate) fn hung(limit: Duration) -> Self {
        Self::Failed(format!("hung: no answer within {} s, killed", limit.as_secs()))
    }
}

/// A running child. Dropping it kills the process.
pub(crate) struct ChildProcess {
    child: Child,
    /// The lines of the child's stdout. The channel disconnects when the child closes its stdout.
    answers: Receiver<String>,
    stderr: Option<Reader<()>>,
    interrupt: Interrupt,
}

impl ChildProcess {
    /// Starts `binary` with `environment` added to the driver's own.
    pub(crate) fn start(binary: &Path, environment: &Variables, interrupt: &Interrupt) -> Result<Self, Failure> {
        let mut child = spawn(Command::new(binary).stdin(Stdio::piped()), environment)?;
        let (sender, answers) = mpsc::channel();
        // Lines that are not valid UTF-8 are forwarded too, so that `ask` reports them as garbage. The send fails only if the receiver is
        // gone.
        read_lines(child.stdout.take(), sender, |sender, line| _ = sender.send(text_of(line)));
        let stderr = read_lines(child.stderr.take(), (), |(), _| ());
        Ok(Self { child, answers, stderr: Some(stderr), interrupt: interrupt.clone() })
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sets the workload up in the child and returns the arm's identity. Fails if the child was built from other sources or with other
    /// flags than the driver, because the report states only the driver's build.
    pub(crate) fn set_up(&mut self, request: &Request, limit: Duration) -> Result<Identity, Failure> {
        match self.ask(request, limit)? {
            Reply::Ready(identity) if identity.build == BuildInfo::current() => Ok(identity),
            Reply::Ready(_) => Err(Failure::Failed(
                "not built from prove-bench's sources and flags: `cargo build --release --bins` builds all".into(),
            )),
            other => Err(self.unexpected(other)),
        }
    }

    /// Makes and verifies one proof. Returns the proof's sample and, if the verifier rejected the proof, the reason.
    pub(crate) fn prove(&mut self, round: u32, seed: u64, limit: Duration) -> Result<Proved, Failure> {
        match self.ask(&Request::Prove { round, seed }, limit)? {
            Reply::Proved { sample, refusal } => Ok((sample, refusal)),
            other => Err(self.unexpected(other)),
        }
    }

    /// Lets the child exit by itself and returns the last lines of its stderr. The arm fails if the child exits with a failure.
    pub(crate) fn finish(mut self) -> Result<Vec<String>, Failure> {
        drop(self.child.stdin.take());
        self.exited(" while exiting")
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
                    return Err(Failure::hung(limit));
                }
            }
        }
    }

    fn unexpected(&mut self, reply: Reply) -> Failure {
        match reply {
            Reply::Failed { reason } => Failure::Failed(reason),
            other => self.garbage(&format!("{other:?}")),
        }
    }

    fn garbage(&mut self, answer: &str) -> Failure {
        self.kill();
        let quoted: String = answer.chars().take(QUOTED_CHARS).collect();
        Failure::Failed(format!("answered garbage: {quoted:?}, killed"))
    }

    /// Returns the failure of a child that closed a pipe before it answered.
    fn gone(&mut self) -> Failure {
        self.exited("").err().unwrap_or_else(|| Failure::Failed("exited without an answer".into()))
    }

    /// Waits until the child exits by itself, and returns the last lines of its stderr. Fails if the exit status is a failure; `when` says
    /// in the message what the child was doing.
    fn exited(&mut self, when: &str) -> Result<Vec<String>, Failure> {
        let since = Instant::now();
        while since.elapsed() < EXIT_PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default().0;
                return if status.success() {
                    Ok(stderr)
                } else {
                    Err(Failure::Failed(how_it_died(status, when, stderr)))
                };
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        Err(Failure::hung(EXIT_PATIENCE))
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

/// Time limit for a proof or a replay outside a run. A run derives its limits from earlier proofs; here there are none.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Makes `proofs` proofs outside a run, in a new child process of `arm`, whose binary is in `folder`. The child gets the arm's environment
/// variables and those in `more`. Prints a line for each proof.
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
            return Err(Failure::Failed(format!("proof {number} was refused: {reason}")));
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
    // Three lines cover a panic: location, message, and the backtrace hint.
    let last_lines: String = tail[tail.len().saturating_sub(3)..].join(" / ").chars().take(QUOTED_CHARS).collect();
    if last_lines.is_empty() { format!("{how}{when}") } else { format!("{how}{when}: {last_lines}") }
}

/// Starts a command with `environment` added to the driver's own, and with pipes for its stdout and stderr.
pub(crate) fn spawn(command: &mut Command, environment: &Variables) -> Result<Child, Failure> {
    command.envs(environment.iter().map(|(name, value)| (name, value))).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A terminal sends Ctrl-C to the driver's whole process group. A command in its own group does not receive Ctrl-C, so the driver does
    // not mistake the interrupt for a failure.
    let child = command.process_group(0).spawn();
    child.map_err(|error| Failure::Failed(format!("cannot start {}: {error}", command.get_program().display())))
}

/// A thread that reads a process's output to the end. It returns the last lines, and the state that `see` updated.
pub(crate) type Reader<T> = JoinHandle<(Vec<String>, T)>;

/// Starts a thread that reads `pipe` and passes each line to `see`. Complete lines include their line feed.
pub(crate) fn read_lines<T: Send + 'static>(
    pipe: Option<impl Read + Send + 'static>,
    mut state: T,
    see: fn(&mut T, &[u8]),
) -> Reader<T> {
    thread::spawn(move || {
        let (mut line, mut lines) = (Vec::new(), VecDeque::new());
        if let Some(mut pipe) = pipe.map(BufReader::new) {
            // A read error also counts as the end of the output.
            while pipe.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                see(&mut state, &line);
                lines.push_back(line);
                line = if lines.len() > LAST_LINES { lines.pop_front() } else { None }.unwrap_or_default();
                line.clear();
            }
        }
        (lines.iter().map(|line| text_of(line)).collect(), state)
    })
}

/// Returns a line as text, without its line feed.
fn text_of(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned()
}

/// Time between two checks for an interrupt while the driver waits.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// A flag that is set when the user asks to stop. Clones share the flag.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Returns an interrupt that Ctrl-C, SIGTERM and SIGHUP raise. Must be called at most once per process.
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        let interrupt = Self::default();
        let raised = interrupt.clone();
        ctrlc::set_handler(move || raised.raise()).context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    /// Returns whether the user asked to stop.
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
        thread::scope(|scope| {
            scope.spawn(|| interrupt.sleep(Duration::from_secs(3600)));
            interrupt.raise();
        });
        assert!(since.elapsed() < Duration::from_secs(60));
    }
}
