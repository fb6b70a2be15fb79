//! Prefaulting free memory before a request needs it.

use super::Arena;
use super::room::Tenant;
use super::zone::Populate;
use crate::route::{self, Path};

impl Arena {
    /// Accounts for free memory for a request of `bytes`, and has `prefault` fault it in. Returns how many bytes were accounted.
    pub(crate) fn populate(&self, bytes: usize, prefault: impl FnOnce(Populate<'_>)) -> usize {
        let (runs, tenant) = match route::path(bytes, 1) {
            Path::Block(_) => (route::SLABS, Tenant::Slab),
            Path::Run(runs) => (runs, Tenant::of_run(bytes)),
        };
        self.region.zone(runs).populate(tenant, bytes, prefault)
    }
}
