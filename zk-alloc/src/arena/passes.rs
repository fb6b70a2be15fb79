//! Passes of the background thread over all zones, in which it makes memory that stays huge.

use std::time::Duration;

use super::collapse::{self, Block, Blocks, Pass};
use super::{Arena, decay};
use crate::config::HugePagesOutcome;
use crate::os::HUGE_PAGE_BYTES;
use crate::route::RunKind;

impl Arena {
    /// Asks the background thread to make memory that stays huge, where it is in small pages; called when what was used may be used
    /// again.
    pub(crate) fn ask_for_huge_pages(&self) {
        if self.config.huge_pages == HugePagesOutcome::Later && collapse::ask(|| self.fresh_bytes()) {
            decay::wake_background();
        }
    }

    /// A pass that makes memory huge, if somebody asked for one. For the background thread.
    pub(crate) fn begin_pass(&'static self) -> Option<Pass<Blocks>> {
        // Aligned runs are a few pages each; what is purged of a huge page stays with the kernel until it is short.
        let zones = [RunKind::Huge, RunKind::Mid].map(|runs| self.region.zone(runs));
        collapse::begin(|| self.fresh_bytes(), zones)
    }

    /// Makes the next huge page of a pass, and returns how long to rest; `None` where the pass is over.
    pub(crate) fn step(&self, pass: &mut Pass<Blocks>) -> Option<Duration> {
        pass.step(collapse::is_idle, collapse::make_huge, |block| self.settle_block(block))
    }

    /// Ends a pass before it is over.
    pub(crate) fn settle(&self, pass: &mut Pass<Blocks>) {
        pass.settle(|block| self.settle_block(block));
    }

    fn settle_block(&self, (zone, at): Block) {
        self.purge_unaccounted(zone, at, HUGE_PAGE_BYTES);
    }
}
