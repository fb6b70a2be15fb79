//! Defines workloads and provers, and makes the proofs of a request: one on this thread, or several concurrently, each on its own thread.

use crate::arms::Installed;
use crate::sample::{Meter, Proved};
use crate::stack::Place;
use anyhow::{Context, anyhow, ensure};
use clap::Args;
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};
use std::thread;
use std::time::Duration;

/// A computation to prove. It is set up once per process and then proved and verified repeatedly.
pub trait Workload: Sized {
    /// The proof, as the prover would send it to a verifier.
    type Proof;
    /// Builds everything that is shared by all proofs (configuration, circuit, keys) for a trace of `2^log_rows` rows. Not timed.
    fn setup(log_rows: u32) -> anyhow::Result<Self>;
    /// Makes one proof, including the generation of its witness or trace. Only this call is timed. The input depends on `seed`, which
    /// differs from proof to proof.
    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof>;
    /// Checks a proof as a verifier would. Not timed.
    fn verify(&self, proof: &Self::Proof) -> anyhow::Result<()>;
}

/// The description of a workload: its name, its sizes, and a set-up function.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadSpec {
    /// Name on the command line, in tables and in files.
    pub name: &'static str,
    /// The statement that is proved, in one line.
    pub about: &'static str,
    /// Size if `--log-rows` is not given, as the binary logarithm of the rows.
    pub default_log_rows: u32,
    /// Smallest size, as the binary logarithm of the rows of the trace.
    pub min_log_rows: u32,
    /// Largest size, in the same unit.
    pub max_log_rows: u32,
    /// Size for `prove-bench check` and for `--smoke`.
    pub check_log_rows: u32,
    /// Upper bound on the default number of processes per arm, for a workload whose set-up is expensive. `None` if the set-up is cheap.
    pub max_processes: Option<u32>,
    setup: SetUp,
}

type SetUp = fn(u32) -> anyhow::Result<Subject>;

impl WorkloadSpec {
    /// Describes the workload `W`. It accepts `2^10` to `2^22` rows, and its size for checks is the default size. With `--concurrent`,
    /// several threads share the workload, and each makes a proof.
    pub const fn new<W: Workload<Proof: Send> + Sync + 'static>(
        name: &'static str,
        about: &'static str,
        default_log_rows: u32,
    ) -> Self {
        let setup: SetUp = |log_rows| {
            ready(W::setup(log_rows)?, |workload, seed, concurrent, installed| {
                concurrent.run(|number| in_scope(workload, seed.wrapping_add(number), installed))
            })
        };
        Self::set_up_by(setup, name, about, default_log_rows)
    }

    /// Like [`new`](Self::new), for a workload that threads can't share. The workload does not support `--concurrent`.
    pub const fn one_at_a_time<W: Workload + 'static>(
        name: &'static str,
        about: &'static str,
        default_log_rows: u32,
    ) -> Self {
        let setup: SetUp = |log_rows| {
            ready(W::setup(log_rows)?, |workload, seed, concurrent, installed| {
                ensure!(concurrent.is_one(), "this workload takes no --concurrent: threads can't share it");
                Ok(vec![in_scope(workload, seed, installed)?])
            })
        };
        Self::set_up_by(setup, name, about, default_log_rows)
    }

    const fn set_up_by(setup: SetUp, name: &'static str, about: &'static str, default_log_rows: u32) -> Self {
        Self {
            name,
            about,
            default_log_rows,
            min_log_rows: 10,
            max_log_rows: 22,
            check_log_rows: default_log_rows,
            max_processes: None,
            setup,
        }
    }

    /// Sets the workload's limits on `log_rows`, both inclusive.
    pub const fn sizes(self, min_log_rows: u32, max_log_rows: u32) -> Self {
        Self { min_log_rows, max_log_rows, ..self }
    }

    /// Sets the size for checks to `2^log_rows` rows. Choose a small size, because people skip a slow check.
    pub const fn checked_at(self, log_rows: u32) -> Self {
        Self { check_log_rows: log_rows, ..self }
    }

    /// Limits the default number of processes per arm to `max_processes`, for a workload whose set-up is expensive.
    pub const fn processes_at_most(self, max_processes: u32) -> Self {
        Self { max_processes: Some(max_processes), ..self }
    }

    pub(crate) fn setup(&self, log_rows: u32) -> anyhow::Result<Subject> {
        (self.setup)(log_rows)
    }
}

/// A proving system and its workloads. Its name is the first argument of `prove-bench`.
#[derive(Debug)]
pub struct Prover {
    /// Name on the command line.
    pub name: &'static str,
    /// The proving system, in one line.
    pub about: &'static str,
    /// Its workloads, in the order in which they run.
    pub workloads: &'static [WorkloadSpec],
}

impl Prover {
    /// Describes a prover, which must use Rayon's global pool. The harness builds that pool before the first set-up.
    pub const fn new(name: &'static str, about: &'static str, workloads: &'static [WorkloadSpec]) -> Self {
        Self { name, about, workloads }
    }
}

/// A function that is called after the proofs of a request, before the clock stops, with the time that they took. It does nothing unless a
/// test requested a fault.
type Disturb = dyn Fn(Duration) -> anyhow::Result<()>;

/// A [`Workload`] that has been set up, as a function that handles a request; its first argument is the seed. The function makes the
/// proofs, each in the allocator's scope, and calls [`Disturb`], all while the clock runs. Then it verifies and drops the proofs. It
/// returns the sample and, if a proof was rejected, the reason.
pub(crate) type Subject = Box<dyn Fn(u64, &ConcurrentProofs, &Installed, &Disturb) -> anyhow::Result<Proved>>;

/// A function that makes the proofs of a request. Its second argument is the seed of the first proof; the others get the following numbers.
type ProveAll<W> = fn(&W, u64, &ConcurrentProofs, &Installed) -> anyhow::Result<Vec<<W as Workload>::Proof>>;

fn ready<W: Workload + 'static>(workload: W, prove: ProveAll<W>) -> anyhow::Result<Subject> {
    Ok(Box::new(move |seed, concurrent, installed, disturb| {
        let meter = Meter::start(installed.counters)?;
        let proofs = prove(&workload, seed, concurrent, installed);
        disturb(meter.elapsed())?;
        let sample = meter.stop(installed.gauges)?;
        let proofs = proofs?;
        let verification = proofs.iter().try_for_each(|proof| workload.verify(proof));
        drop(proofs);
        sample.at_rest(verification)
    }))
}

/// Makes a proof in the allocator's scope.
fn in_scope<W: Workload>(workload: &W, seed: u64, installed: &Installed) -> anyhow::Result<W::Proof> {
    let mut proof = None;
    (installed.scope)(&mut || proof = Some(workload.prove(seed)));
    proof.context("the allocator's scope did not run the prover")?.context("no proof was made")
}

/// Options on how many proofs a process makes concurrently, and whether each has its own pool.
#[derive(Args, Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Concurrent {
    /// Make this many proofs at once in each process; times, faults and memory cover all of them
    #[arg(long = "concurrent", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) proofs: u32,
    /// Give each proof of --concurrent a pool of its own, of --threads threads, instead of one that all share
    #[arg(long)]
    pub(crate) pool_each: bool,
}

impl Default for Concurrent {
    fn default() -> Self {
        Self { proofs: 1, pool_each: false }
    }
}

/// Makes the concurrent proofs of a process. Owns their pools.
pub(crate) struct ConcurrentProofs {
    proofs: u32,
    /// A pool for each proof; empty if all proofs share the global pool.
    pools: Vec<ThreadPool>,
    place: Place,
}

impl ConcurrentProofs {
    /// Builds a pool for each proof, if requested. The global pool must exist already.
    pub(crate) fn new(concurrent: Concurrent, place: Place) -> anyhow::Result<Self> {
        let Concurrent { proofs, pool_each } = concurrent;
        let count = if pool_each { proofs } else { 0 };
        let pools = (0..count).map(|_| place.own_pool()).collect::<anyhow::Result<_>>()?;
        Ok(Self { proofs, pools, place })
    }

    /// Returns whether a request makes a single proof, on the global pool.
    pub(crate) fn is_one(&self) -> bool {
        self.proofs == 1 && self.pools.is_empty()
    }

    /// Calls `prove` for each proof, with the proof's number from 0. Returns the proofs in the order of their numbers, or the first error.
    pub(crate) fn run<P: Send>(&self, prove: impl Fn(u64) -> anyhow::Result<P> + Sync) -> anyhow::Result<Vec<P>> {
        if self.is_one() {
            return Ok(vec![prove(0)?]);
        }
        let prove = |number: u32| match self.pools.get(number as usize) {
            Some(pool) => pool.install(|| prove(number.into())),
            None => self.place.begin(|| prove(number.into())),
        };
        thread::scope(|scope| {
            let spawned: Vec<_> = (0..self.proofs).map(|number| scope.spawn(move || prove(number))).collect();
            let ended: Vec<_> = spawned.into_iter().map(thread::ScopedJoinHandle::join).collect();
            let of = self.proofs;
            let named = (1..).zip(ended).map(|(number, ended)| {
                ended.unwrap_or_else(|_| Err(anyhow!("it panicked"))).with_context(|| format!("proof {number} of {of}"))
            });
            named.collect()
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Barrier;

    const fn named(name: &'static str, default_log_rows: u32) -> WorkloadSpec {
        WorkloadSpec::set_up_by(|_| anyhow::bail!("this workload is a name"), name, "a name", default_log_rows)
    }

    pub(crate) static PROVERS: &[Prover] = &[Prover {
        name: "plonky3",
        about: "a name",
        workloads: &[
            named("poseidon2", 15).checked_at(13),
            named("keccak", 14).checked_at(12),
            named("whir", 21).sizes(10, 21).checked_at(20),
        ],
    }];

    /// The two proofs wait for each other, so that they run concurrently.
    #[test]
    fn a_pool_each_means_that_no_two_proofs_share_a_worker() {
        let proofs = ConcurrentProofs::new(Concurrent { proofs: 2, pool_each: true }, Place::new(48)).unwrap();
        let all = Barrier::new(2);
        let workers = proofs.run(|_| {
            all.wait();
            Ok(rayon::broadcast(|_| thread::current().id()))
        });
        let [one, other] = &workers.unwrap()[..] else { panic!("not two proofs") };
        assert!(one.iter().all(|worker| !other.contains(worker)), "{one:?} {other:?}");
    }
}
