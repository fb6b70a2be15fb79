//! Prefaulting free memory before a request needs it.

use super::Arena;
use super::room::RunUse;
use super::zone::Populate;
use crate::route::{self, Path};

impl Arena {
    /// Accounts for free memory for a request of `bytes`, and has `prefault` fault it in. Returns how many bytes were accounted.
    pub(crate) fn populate(&self, bytes: usize, prefault: impl FnOnce(Populate<'_>)) -> usize {
        let (runs, run_use) = match route::path(bytes, 1) {
            Path::Block(_) => (route::SLABS, RunUse::Slab),
            Path::Run(runs) => (runs, RunUse::of_run(bytes)),
        };
        self.region.zone(runs).populate(run_use, bytes, prefault)
    }
}
