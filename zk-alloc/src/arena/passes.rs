//! Passes of the background thread over the zones, which collapse memory into huge pages; see `collapse`.

use std::time::Duration;

use super::collapse::{self, Block, Blocks, Pass};
use super::{Arena, decay};
use crate::config::HugePagesOutcome;
use crate::os::HUGE_PAGE_BYTES;
use crate::route::RunKind;

impl Arena {
    /// Asks the background thread for a pass, if the setting is to collapse later and the arena grew enough. Called when used memory may be
    /// reused.
    pub(crate) fn ask_for_huge_pages(&self) {
        if self.config.huge_pages == HugePagesOutcome::Later && collapse::ask(|| self.fresh_bytes()) {
            decay::wake_background();
        }
    }

    /// Begins a pass, if a thread asked for one. For the background thread.
    pub(crate) fn begin_pass(&'static self) -> Option<Pass<Blocks>> {
        // Aligned runs are left out. They are a few pages each, and the kernel keeps a purged part of a huge page until memory is short.
        let zones = [RunKind::Huge, RunKind::Mid].map(|runs| self.region.zone(runs));
        collapse::begin(|| self.fresh_bytes(), zones)
    }

    /// Takes the next step of a pass. Returns how long to rest; `None` when the pass is over.
    pub(crate) fn step(&self, pass: &mut Pass<Blocks>) -> Option<Duration> {
        pass.step(collapse::is_idle, collapse::make_huge, |block| self.settle_block(block))
    }

    /// Settles the last block of a pass that ends early.
    pub(crate) fn settle(&self, pass: &mut Pass<Blocks>) {
        pass.settle(|block| self.settle_block(block));
    }

    fn settle_block(&self, (zone, at): Block) {
        self.purge_unaccounted(zone, at, HUGE_PAGE_BYTES);
    }
}
