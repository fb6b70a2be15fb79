//! An arena under a policy, in numbers only: where each request goes, and what is resident for it.
//!
//! It follows `zk-alloc/src/{allocator,route}.rs` and `arena/{slab,zone}.rs`, but for threads that exit, of which a trace
//! does not tell.

use super::policy::Policy;
use super::zone::Zone;
use std::collections::HashMap;

const SLAB_ALIGN_BYTES: u64 = 64;
const SLAB_MAX_ALIGN_BYTES: u64 = 32 << 10;
/// Runs of this size and more are aligned to it.
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Above, growth leaves a block with the backing allocator.
const MIGRATE_MAX_BYTES: u64 = 128 << 10;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Backing,
    /// In the slab that begins at granule `slab` of the slabs' zone, `offset` bytes in.
    Slab {
        slab: usize,
        offset: u64,
    },
    Run {
        zone: usize,
        start: usize,
    },
}

/// A block that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) size_bytes: u64,
    pub(crate) align_bytes: u64,
}

/// A slab that is in use.
#[derive(Debug, Default)]
struct Slab {
    /// Allocations that were not freed.
    live: usize,
    bump: u64,
    /// The thread that allocates from it.
    owner: Option<u16>,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) live_bytes: u64,
    pub(crate) live_peak_bytes: u64,
    pub(crate) fresh_bytes: u64,
    pub(crate) arena_allocations: u64,
    /// Requests within a phase that went to the backing allocator.
    pub(crate) backing_allocations: u64,
    pub(crate) slabs_peak: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Arena<'a> {
    policy: &'a Policy,
    /// Zones of runs, and behind them the zone of slabs if they lie apart.
    zones: Vec<Zone>,
    slabs: HashMap<usize, Slab>,
    /// The slab that each thread allocates from.
    current: HashMap<u16, usize>,
    pub(crate) totals: Totals,
}

impl<'a> Arena<'a> {
    pub(crate) fn new(policy: &'a Policy) -> Self {
        let mut granules = policy.granules();
        granules.extend(policy.slabs_apart.then_some(policy.slab_bytes));
        let zones = granules.into_iter().map(|granule_bytes| Zone::new(granule_bytes, policy.fit)).collect();
        Self { policy, zones, slabs: HashMap::new(), current: HashMap::new(), totals: Totals::default() }
    }

    /// Bytes that the process pays for, all zones together.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.zones.iter().map(Zone::resident_bytes).sum()
    }

    /// Slabs that only what outlived its use keeps.
    pub(crate) fn pinned_slabs(&self) -> usize {
        self.slabs.values().filter(|slab| slab.owner.is_none() && slab.live > 0).count()
    }

    /// A new block for `thread`.
    pub(crate) fn alloc(&mut self, thread: u16, size_bytes: u64, align_bytes: u64, in_phase: bool) -> Block {
        let place = if !in_phase || size_bytes < self.policy.min_bytes {
            self.totals.backing_allocations += u64::from(in_phase);
            Place::Backing
        } else {
            self.totals.arena_allocations += 1;
            self.grew(size_bytes);
            if self.is_for_slabs(size_bytes, align_bytes) {
                self.alloc_in_slab(thread, size_bytes, align_bytes)
            } else {
                self.alloc_run(size_bytes, align_bytes)
            }
        };
        Block { place, size_bytes, align_bytes }
    }

    pub(crate) fn free(&mut self, thread: u16, block: Block) {
        match block.place {
            Place::Backing => return,
            Place::Run { zone, start } => {
                let len = self.zones[zone].granules(block.size_bytes);
                self.zones[zone].release(start, len);
            }
            Place::Slab { slab, offset } => self.free_in_slab(thread, slab, offset, block.size_bytes),
        }
        self.totals.live_bytes -= block.size_bytes;
    }

    /// The block after `realloc` to `size_bytes`.
    pub(crate) fn resize(&mut self, thread: u16, block: Block, size_bytes: u64, in_phase: bool) -> Block {
        let resized = Block { size_bytes, ..block };
        match block.place {
            Place::Backing if size_bytes <= block.size_bytes || block.size_bytes > MIGRATE_MAX_BYTES => return resized,
            Place::Backing => return self.alloc(thread, size_bytes, block.align_bytes, in_phase),
            _ => {}
        }
        if self.resize_in_place(thread, block, size_bytes) {
            self.totals.live_bytes -= block.size_bytes;
            self.grew(size_bytes);
            return resized;
        }
        // Both are alive while the contents are copied.
        let moved = self.alloc(thread, size_bytes, block.align_bytes, in_phase);
        self.free(thread, block);
        moved
    }

    fn grew(&mut self, bytes: u64) {
        self.totals.live_bytes += bytes;
        self.totals.live_peak_bytes = self.totals.live_peak_bytes.max(self.totals.live_bytes);
    }

    fn is_for_slabs(&self, size_bytes: u64, align_bytes: u64) -> bool {
        size_bytes <= self.policy.slab_max_bytes && align_bytes <= SLAB_MAX_ALIGN_BYTES
    }

    fn resize_in_place(&mut self, thread: u16, block: Block, size_bytes: u64) -> bool {
        let for_slabs = self.is_for_slabs(size_bytes, block.align_bytes);
        match block.place {
            Place::Backing => false,
            Place::Slab { slab, offset } if for_slabs => {
                let (old, new) = (rounded(block.size_bytes), rounded(size_bytes));
                let slab_bytes = self.policy.slab_bytes;
                let slab = self.slab(slab);
                if slab.owner == Some(thread) && offset + old == slab.bump && offset + new <= slab_bytes {
                    slab.bump = offset + new;
                    return true;
                }
                size_bytes <= block.size_bytes && new >= old / 2
            }
            Place::Run { zone, start } if !for_slabs && zone == self.policy.zone(size_bytes) => {
                let zone = &mut self.zones[zone];
                let (old, new) = (zone.granules(block.size_bytes), zone.granules(size_bytes));
                if new > old {
                    if !zone.is_free(start + old, new - old) {
                        return false;
                    }
                    self.totals.fresh_bytes += zone.take(start + old, new - old);
                } else if new < old {
                    zone.release(start + new, old - new);
                }
                true
            }
            _ => false,
        }
    }

    fn alloc_run(&mut self, size_bytes: u64, align_bytes: u64) -> Place {
        let align_bytes = if size_bytes >= HUGE_PAGE_BYTES { align_bytes.max(HUGE_PAGE_BYTES) } else { align_bytes };
        let own = self.policy.zone(size_bytes);
        let sized = |zone: &Zone| (zone.granules(size_bytes), zone.granules(align_bytes).next_power_of_two());
        let (len, align) = sized(&self.zones[own]);
        let mut place = (own, self.zones[own].find(len, align, self.runs_from(own)));
        let may_spill = self.policy.spill_min_bytes.is_some_and(|min| size_bytes >= min);
        if may_spill && own < self.policy.borders.len() && self.zones[own].fresh(place.1, len) > 0 {
            let (len, align) = sized(&self.zones[own + 1]);
            let spilled = self.zones[own + 1].find_resident_from_the_top(len, align);
            place = spilled.map_or(place, |start| (own + 1, start));
        }
        let (zone, start) = place;
        let len = self.zones[zone].granules(size_bytes);
        self.totals.fresh_bytes += self.zones[zone].take(start, len);
        Place::Run { zone, start }
    }

    fn alloc_in_slab(&mut self, thread: u16, size_bytes: u64, align_bytes: u64) -> Place {
        if let Some(&slab) = self.current.get(&thread) {
            if let Some(place) = self.bump(slab, size_bytes, align_bytes) {
                return place;
            }
            if self.slab(slab).live == 0 {
                self.slab(slab).bump = 0;
            } else {
                // Left to its blocks: the last of them gives it back.
                self.slab(slab).owner = None;
                self.current.remove(&thread);
            }
        }
        let slab = self.current.get(&thread).copied().unwrap_or_else(|| self.claim_slab(thread));
        self.bump(slab, size_bytes, align_bytes).expect("an empty slab has room for the largest that it serves")
    }

    fn claim_slab(&mut self, thread: u16) -> usize {
        let zone = self.slab_zone();
        let len = self.zones[zone].granules(self.policy.slab_bytes);
        let start = self.zones[zone].find(len, len, 0);
        self.totals.fresh_bytes += self.zones[zone].take(start, len);
        self.slabs.insert(start, Slab { owner: Some(thread), ..Slab::default() });
        self.current.insert(thread, start);
        self.totals.slabs_peak = self.totals.slabs_peak.max(self.slabs.len());
        start
    }

    fn bump(&mut self, slab: usize, size_bytes: u64, align_bytes: u64) -> Option<Place> {
        let slab_bytes = self.policy.slab_bytes;
        let entry = self.slab(slab);
        let offset = entry.bump.next_multiple_of(align_bytes.max(SLAB_ALIGN_BYTES));
        let end = offset + rounded(size_bytes);
        (end <= slab_bytes).then(|| {
            entry.bump = end;
            entry.live += 1;
            Place::Slab { slab, offset }
        })
    }

    fn free_in_slab(&mut self, thread: u16, slab: usize, offset: u64, size_bytes: u64) {
        let entry = self.slab(slab);
        entry.live -= 1;
        let own = entry.owner == Some(thread);
        if own && offset + rounded(size_bytes) == entry.bump {
            entry.bump = offset;
        }
        match (entry.live, entry.owner) {
            (0, Some(_)) if own => entry.bump = 0,
            (0, None) => {
                self.slabs.remove(&slab);
                let zone = self.slab_zone();
                let len = self.zones[zone].granules(self.policy.slab_bytes);
                self.zones[zone].release(slab, len);
            }
            _ => {}
        }
    }

    fn slab(&mut self, slab: usize) -> &mut Slab {
        self.slabs.get_mut(&slab).expect("blocks and threads name slabs in use")
    }

    /// The first granule of a zone that runs may take.
    fn runs_from(&self, zone: usize) -> usize {
        let head_bytes = if zone == self.slab_zone() { self.policy.slabs_only_bytes } else { 0 };
        self.zones[zone].granules(head_bytes)
    }

    /// A zone of their own is behind those of runs.
    fn slab_zone(&self) -> usize {
        if self.policy.slabs_apart { self.zones.len() - 1 } else { self.policy.zone(self.policy.slab_bytes) }
    }
}

const fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(SLAB_ALIGN_BYTES)
}
