//! Memory that is brought in before it is asked for.

use super::Arena;
use super::runs::Tenant;
use super::zone::Populate;
use crate::route::{self, Path};

impl Arena {
    /// Accounts for free memory for a request of `bytes`, for `prefault` to bring in. Returns how many bytes.
    pub(crate) fn populate(&self, bytes: usize, prefault: impl FnOnce(Populate<'_>)) -> usize {
        let (runs, tenant) = match route::path(bytes, 1) {
            Path::Block(_) => (route::SLABS, Tenant::Slab),
            Path::Run(runs) => (runs, Tenant::of_run(bytes)),
        };
        self.region.zone(runs).populate(tenant, bytes, prefault)
    }
}
