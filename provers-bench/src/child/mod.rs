//! The child's side: a process with one allocator that proves on request.
//!
//! - `mod`: answers requests
//! - `fault_injection`: failures on request, for tests
//! - `profiling`: the profile of an arm of zk-alloc
//! - `recorder`: the recorder: its allocator, which records every large request, and its `main`
//! - `replay`: a script on real memory

mod fault_injection;
#[cfg(feature = "profile")]
pub(crate) mod profiling;
pub mod recorder;
mod replay;

use crate::arms::Installed;
use crate::machine::BuildInfo;
use crate::machine::process;
use crate::protocol::{Identity, Reply, Request, Shape, line};
use crate::stack::Place;
use crate::workloads::{ConcurrentProofs, Prover, Subject};
use anyhow::Context;
use fault_injection::Fault;
use nix::unistd::{dup, dup2_stdout};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

/// The whole of an arm's binary: installs one of the [`allocators`](crate::arms), and proves when the driver asks.
///
/// The arm `zk-alloc` starts the binary `with-zk-alloc`, which is `src/bin/with-zk-alloc.rs`:
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

/// Serves a driver on stdin and stdout until stdin ends: the `main` of an arm's binary, which [`arm!`](crate::arm!)
/// writes. `installed` describes the allocator that the binary links. `provers` are the provers that its driver knows.
///
/// The prover's own output goes to stderr, because stdout belongs to the protocol.
pub fn main(provers: &[Prover], installed: Installed) -> ExitCode {
    match serve(provers, &installed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(provers: &[Prover], installed: &Installed) -> anyhow::Result<()> {
    let mut replies = File::from(dup(io::stdout()).context("cannot keep stdout")?);
    dup2_stdout(io::stderr()).context("cannot send stdout to stderr")?;
    let mut session = None;
    #[cfg(feature = "profile")]
    let profiling = profiling::Profiling::from_environment();
    for request in io::stdin().lock().lines() {
        let request = request.context("cannot read a request")?;
        let request = serde_json::from_str(&request)
            .with_context(|| format!("not a request of prove-bench, which starts this binary itself: {request}"))?;
        let reply = match request {
            Request::Setup { arm, prover, workload, log_rows, concurrent, requires, stack_bytes } => {
                let place = Place::new(stack_bytes);
                // Confirm first: the allocator must be asked before it is used.
                let ready = installed.confirm(&requires).and_then(|confirmed| {
                    let subject = set_up(provers, &prover, &workload, log_rows, place)?;
                    let concurrent = ConcurrentProofs::new(concurrent, place)?;
                    Ok((subject, concurrent, identity(installed, confirmed)))
                });
                match ready {
                    Ok((subject, concurrent, identity)) => {
                        session = Some((Session { arm, subject, concurrent }, place));
                        Reply::Ready(identity)
                    }
                    Err(error) => Reply::Failed { reason: format!("{error:#}") },
                }
            }
            Request::Prove { round, seed } => {
                let (session, place) = session.as_ref().context("asked to prove before being set up")?;
                let proof = || session.prove(installed, round, seed, &mut replies);
                #[cfg(feature = "profile")]
                let proof = || profiling.prove(round, proof);
                place.begin(proof)?
            }
            Request::Replay { script, shape, requires } => replay(installed, &script, shape, &requires),
        };
        replies.write_all(line(&reply)?.as_bytes()).context("the driver is gone")?;
    }
    Ok(())
}

fn set_up(provers: &[Prover], prover: &str, workload: &str, log_rows: u32, place: Place) -> anyhow::Result<Subject> {
    let prover = provers.iter().find(|known| known.name == prover).context("unknown prover")?;
    let spec = prover.workloads.iter().find(|known| known.name == workload).context("unknown workload")?;
    // The pool must exist before the adapter builds one.
    place.build_pool()?;
    (prover.init)();
    spec.setup(log_rows).context("setup failed")
}

fn identity(installed: &Installed, confirmed: Vec<String>) -> Identity {
    Identity {
        allocator: installed.name.clone(),
        version: installed.version.clone(),
        settings: installed.settings(),
        confirmed,
        peak_is_per_proof: process::reset_peak(),
        build: BuildInfo::current(),
    }
}

/// A workload that is set up.
struct Session {
    arm: String,
    subject: Subject,
    concurrent: ConcurrentProofs,
}

impl Session {
    fn prove(&self, installed: &Installed, round: u32, seed: u64, replies: &mut File) -> anyhow::Result<Reply> {
        let fault = Fault::for_proof(&self.arm, round)?;
        if let Some(fault) = fault {
            fault.strike();
        }
        if fault == Some(Fault::Garbage) {
            replies.write_all(b"this is no reply\n")?;
        }
        let disturb = move |elapsed| fault.map_or(Ok(()), |fault| fault.disturb(elapsed));
        match (self.subject)(seed, &self.concurrent, installed, &disturb) {
            Ok((mut sample, mut refusal)) => {
                if fault == Some(Fault::BadProof) {
                    sample.verified = false;
                    refusal = Some(format!("{} asked for a bad proof", fault_injection::SETTING));
                }
                Ok(Reply::Proved { sample, refusal })
            }
            Err(error) => Ok(Reply::Failed { reason: format!("{error:#}") }),
        }
    }
}

fn replay(installed: &Installed, script: &str, shape: Shape, requires: &[(String, String)]) -> Reply {
    let replayed = installed.confirm(requires).and_then(|confirmed| {
        let identity = identity(installed, confirmed);
        Ok(Reply::Replayed { identity, replayed: replay::replay(Path::new(script), shape, installed)? })
    });
    replayed.unwrap_or_else(|error| Reply::Failed { reason: format!("{error:#}") })
}
