//! The child process, which has one allocator and proves on request.
//!
//! - `mod`: answers requests, and injects faults for tests
//! - `profiling`: the profile of an arm of zk-alloc
//! - `traces`: the recorder (an allocator that records every large request, and a `main`), and the replay of a script

#[cfg(feature = "profile")]
pub(crate) mod profiling;
pub mod traces;

use crate::arms::Installed;
use crate::machine::BuildInfo;
use crate::machine::process::reset_peak;
use crate::protocol::{Identity, REPLAY, Reply, Request, line};
use crate::stack::Place;
use crate::workloads::{ConcurrentProofs, Prover, Subject};
use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use nix::unistd::{dup, dup2_stdout};
use std::env;
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

/// Defines the whole binary of an arm: installs one of the [`allocators`](crate::arms), and proves when the driver asks.
///
/// The binary of the arm `zk-alloc` is `with-zk-alloc`, so its source is `src/bin/with-zk-alloc.rs`:
///
/// ```
/// # mod my_prover { pub static PROVERS: &[provers_bench::Prover] = &[]; }
/// provers_bench::arm!(zk_alloc, my_prover::PROVERS);
/// ```
#[macro_export]
macro_rules! arm {
    ($allocator:ident, $provers:expr) => {
        #[global_allocator]
        static ALLOCATOR: $crate::arms::$allocator::Allocator = $crate::arms::$allocator::ALLOCATOR;

        #[allow(unexpected_cfgs, reason = "only the bench's own build script sets it")]
        fn main() -> ::std::process::ExitCode {
            #[cfg(not(without_prover))]
            let provers: &[$crate::Prover] = $provers;
            #[cfg(without_prover)]
            let provers: &[$crate::Prover] = &[];
            $crate::child::main(provers, $crate::arms::$allocator::installed())
        }
    };
}

/// Serves a driver on stdin and stdout until stdin ends. The `main` that [`arm!`](crate::arm!) generates calls this
/// function. `installed` describes the allocator that the binary links. `provers` are the provers that the driver
/// knows.
///
/// The prover's own output goes to stderr, because stdout carries the protocol.
pub fn main(provers: &[Prover], installed: Installed) -> ExitCode {
    code_of(serve(provers, &installed))
}

/// Prints the error, if there is one, and returns the exit code.
fn code_of(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}

fn serve(provers: &[Prover], installed: &Installed) -> anyhow::Result<ExitCode> {
    let mut replies = File::from(dup(io::stdout()).context("cannot keep stdout")?);
    dup2_stdout(io::stderr()).context("cannot send stdout to stderr")?;
    let mut session = None;
    #[cfg(feature = "profile")]
    let folder = env::var_os(crate::protocol::profiles::FOLDER);
    for request in io::stdin().lock().lines() {
        let request = request.context("cannot read a request")?;
        let request = serde_json::from_str(&request)
            .with_context(|| format!("not a request of prove-bench, which starts this binary itself: {request}"))?;
        let reply = match request {
            Request::Setup { arm, prover, workload, log_rows, concurrent, requires, stack_bytes } => {
                let place = Place::new(stack_bytes);
                // Confirm first: the settings must be checked before the prover uses the allocator.
                let ready = installed.confirm(&requires).and_then(|confirmed| {
                    let subject = set_up(provers, &prover, &workload, log_rows, place)?;
                    let concurrent = ConcurrentProofs::new(concurrent, place)?;
                    session = Some((Session { arm, subject, concurrent }, place));
                    Ok(Reply::Ready(identity(installed, confirmed)))
                });
                ready.unwrap_or_else(failed)
            }
            Request::Prove { round, seed } => {
                let (session, place) = session.as_ref().context("asked to prove before being set up")?;
                let proof = || session.prove(installed, round, seed, &mut replies);
                #[cfg(feature = "profile")]
                let proof = || profiling::prove(folder.as_deref().map(Path::new), round, proof);
                place.begin(proof)?
            }
        };
        replies.write_all(line(&reply)?.as_bytes()).context("the driver is gone")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(error: anyhow::Error) -> Reply {
    Reply::Failed { reason: format!("{error:#}") }
}

fn set_up(provers: &[Prover], prover: &str, workload: &str, log_rows: u32, place: Place) -> anyhow::Result<Subject> {
    if prover == REPLAY {
        return traces::subject(Path::new(workload));
    }
    let prover = provers.iter().find(|known| known.name == prover).context("unknown prover")?;
    let spec = prover.workloads.iter().find(|known| known.name == workload).context("unknown workload")?;
    // The pool must be built before the call to `build_global`, which would otherwise build its own. That call also starts the background
    // thread if a setting enables it. The threads start outside phases, so their permanent allocations are not in the arena.
    place.build_pool()?;
    let _ = zk_alloc::pool::build_global();
    spec.setup(log_rows).context("setup failed")
}

fn identity(installed: &Installed, confirmed: Vec<String>) -> Identity {
    Identity {
        allocator: installed.name.clone(),
        version: installed.version.clone(),
        settings: installed.settings(),
        confirmed,
        peak_is_per_proof: reset_peak(),
        build: BuildInfo::current(),
    }
}

/// A workload that is ready to be proved.
struct Session {
    arm: String,
    subject: Subject,
    concurrent: ConcurrentProofs,
}

impl Session {
    fn prove(&self, installed: &Installed, round: u32, seed: u64, replies: &mut File) -> anyhow::Result<Reply> {
        let fault = Fault::for_proof(&self.arm, round)?;
        fault.map_or(Ok(()), |fault| fault.strike(replies))?;
        let disturb = move |elapsed| fault.map_or(Ok(()), |fault| fault.disturb(elapsed));
        let proved = (self.subject)(seed, &self.concurrent, installed, &disturb).map(|(mut sample, mut refusal)| {
            if fault == Some(Fault::BadProof) {
                sample.verified = false;
                refusal = Some(format!("{FAULT} asked for a bad proof"));
            }
            Reply::Proved { sample, refusal }
        });
        Ok(proved.unwrap_or_else(failed))
    }
}

/// The environment variable that injects a fault, as `arm:round:kind`; the round `*` means every round. Tests use it to check how the real
/// driver and the real gate handle a failing arm.
const FAULT: &str = "PROVE_BENCH_TEST_FAULT";
/// Number of bytes that [`Fault::PageFaults`] touches: enough for more page faults than the gate allows.
const STORM_BYTES: usize = 48 << 20;

/// The faults that can be injected: failures of the child, and regressions.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Fault {
    Die,
    Hang,
    Garbage,
    BadProof,
    /// `slow=PERCENT`: the proof takes this percentage longer.
    #[value(skip)]
    Slow(u32),
    /// The proof touches pages that are new to the process.
    PageFaults,
}

impl Fault {
    /// Returns the fault that a test requested for this proof.
    fn for_proof(arm: &str, round: u32) -> anyhow::Result<Option<Self>> {
        let Ok(setting) = env::var(FAULT) else { return Ok(None) };
        let [wanted_arm, wanted_round, kind] = setting.split(':').collect::<Vec<_>>()[..] else {
            bail!("{FAULT} is arm:round:kind, not {setting}");
        };
        if wanted_arm != arm || (wanted_round != "*" && wanted_round != round.to_string()) {
            return Ok(None);
        }
        let fault = match kind.strip_prefix("slow=") {
            Some(percent) => percent.parse().map(Self::Slow).map_err(|error| format!("{error}: {kind}")),
            None => Self::from_str(kind, false),
        };
        fault.map(Some).map_err(|error| anyhow!("{FAULT}: {error}"))
    }

    /// Applies the fault before the proof. `Die` and `Hang` do not return.
    fn strike(self, replies: &mut File) -> io::Result<()> {
        match self {
            Self::Die => process::abort(),
            Self::Hang => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            Self::Garbage => replies.write_all(b"this is no reply\n"),
            _ => Ok(()),
        }
    }

    /// Applies the fault after a proof that took `elapsed`, while the proof is still being timed.
    fn disturb(self, elapsed: Duration) -> anyhow::Result<()> {
        match self {
            Self::Slow(percent) => {
                let since = Instant::now();
                while since.elapsed() < elapsed * percent / 100 {
                    spin_loop();
                }
                Ok(())
            }
            Self::PageFaults => storm(),
            _ => Ok(()),
        }
    }
}

fn storm() -> anyhow::Result<()> {
    // With huge pages, touching the whole buffer would cause only two dozen faults.
    nix::sys::prctl::set_thp_disable(true).context("cannot switch huge pages off")?;
    // The request is outside any phase, and larger than any block that glibc retains, so the kernel supplies new pages each time.
    let mut pages = vec![0_u8; STORM_BYTES];
    pages.iter_mut().step_by(traces::PAGE_BYTES).for_each(|byte| *byte = 1);
    drop(black_box(pages));
    nix::sys::prctl::set_thp_disable(false).context("cannot switch huge pages on again")
}
