//! Making the zone's address space accessible, step by step.
#![allow(unsafe_code, reason = "commits memory")]

use super::Zone;
use crate::os;
use crate::tuning;

impl Zone {
    /// Makes the first `pages` of the zone accessible; `false` if the kernel refuses.
    pub(super) fn commit_to(&self, pages: usize) -> bool {
        self.committed.reach(pages, |before| self.commit_from(before, pages))
    }

    /// Treats all of the zone as committed, for the models of loom, which have memory of their own.
    #[cfg(loom)]
    pub(crate) fn assume_committed(&self) {
        self.huge.advise(&self.residency, 0..self.runs.len());
        self.committed.reach(self.runs.len(), |_| Some(self.runs.len()));
    }

    /// Bytes that were prefaulted, and not handed out since.
    pub(crate) fn prefaulted_bytes(&self) -> usize {
        self.residency.clean_bytes(self.committed.pages())
    }

    /// Bytes for which the kernel has pages; `None` if it does not tell.
    pub(crate) fn kernel_bytes(&self) -> Option<usize> {
        match self.committed.pages() {
            0 => Some(0),
            pages => self.residency.bytes_in_memory(0, pages),
        }
    }

    fn commit_from(&self, before: usize, pages: usize) -> Option<usize> {
        let step = (self.bytes(before) / 2)
            .clamp(tuning::least_commit_bytes(), tuning::most_commit_bytes())
            .next_power_of_two();
        let generous = pages.next_multiple_of(self.pages(step)).min(self.runs.len());
        [generous, pages].into_iter().find(|&target| {
            let (at, len) = (self.address(before), self.bytes(target - before));
            self.counters().system_call();
            // SAFETY: pages `before..target` of this zone, within the room.
            let extended = unsafe { os::extend(at.as_ptr(), len) };
            match extended {
                Ok(()) => self.huge.advise(&self.residency, before..target),
                Err(refused) => self.counters().refused(refused, "commit memory", len),
            }
            extended.is_ok()
        })
    }
}
