//! The proofs of one request: one on this thread, or several at once on a thread each.

use crate::stack::Place;
use anyhow::{Context, anyhow};
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};
use std::thread;

/// The proofs that a process makes at once.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Concurrent {
    pub(crate) proofs: u32,
    /// Whether each proof has a pool of its own, instead of one that all share.
    pub(crate) pool_each: bool,
}

impl Default for Concurrent {
    fn default() -> Self {
        Self { proofs: 1, pool_each: false }
    }
}

/// The proofs that a process makes at once, with their pools.
pub(crate) struct Together {
    proofs: u32,
    /// A pool for each proof; empty if all share the global one.
    pools: Vec<ThreadPool>,
    place: Place,
}

impl Together {
    /// Builds the pools. The global pool's threads exist already.
    pub(crate) fn new(concurrent: Concurrent, place: Place) -> anyhow::Result<Self> {
        let Concurrent { proofs, pool_each } = concurrent;
        let count = if pool_each { proofs } else { 0 };
        let pools = (0..count).map(|_| place.own_pool()).collect::<anyhow::Result<_>>()?;
        Ok(Self { proofs, pools, place })
    }

    /// Whether there is one proof, on the global pool.
    pub(crate) fn is_one(&self) -> bool {
        self.proofs == 1 && self.pools.is_empty()
    }

    /// Calls `prove` for each proof, with its number from 0. Returns the proofs in this order, or the first error.
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
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::{Barrier, Mutex};

    fn together(proofs: u32, pool_each: bool) -> Together {
        Together::new(Concurrent { proofs, pool_each }, Place::new(48)).unwrap()
    }

    /// Each waits for all others, so that one after another would never end.
    #[test]
    fn a_pool_each_means_that_no_two_proofs_share_a_worker() {
        let (all, workers) = (Barrier::new(2), Mutex::new(Vec::new()));
        let made = together(2, true).run(|_| {
            all.wait();
            let of_this: HashSet<_> = rayon::broadcast(|_| thread::current().id()).into_iter().collect();
            workers.lock().unwrap().push(of_this);
            Ok(())
        });
        assert_eq!(made.unwrap().len(), 2);
        let workers = workers.into_inner().unwrap();
        assert!(workers[0].is_disjoint(&workers[1]), "{workers:?}");
    }
}
