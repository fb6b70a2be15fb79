//! Serves the small and medium sizes. Blocks come from the thread's cache, which fetches them from slabs and returns them in batches.
#![allow(unsafe_code, reason = "hands out memory")]

pub(crate) mod slab;

#[cfg(feature = "c-api")]
use std::fmt;
use std::ptr::NonNull;

use crate::accounts::Limit;
use crate::arena::front::{self, Cache};
use crate::arena::heap::slab::SlabTable;
use crate::arena::pages::zone::{Shortage, Zone};
use crate::arena::purge::decay;
use crate::classes::Class;
use crate::os::Errno;
use crate::{gate, tuning};

/// The maximum number of blocks that a thread fetches at once.
const BATCH: usize = 32;

/// Why an address in the arena can't be freed.
#[cfg(feature = "c-api")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFreeable {
    /// It is inside a block, but not at its start.
    InBlock {
        /// Its offset in the block, in bytes.
        offset: usize,
        /// The length of the block, in bytes.
        bytes: usize,
    },
    /// The block was freed before.
    FreedBlock {
        /// The length of the block, in bytes.
        bytes: usize,
    },
    /// It is in no block, and no page run begins there.
    NoRun,
}

#[cfg(feature = "c-api")]
impl fmt::Display for NotFreeable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InBlock { offset, bytes } => {
                write!(f, "no allocation begins there; it is byte {offset} of a block of {bytes} bytes")
            }
            Self::FreedBlock { bytes } => write!(f, "the block of {bytes} bytes was freed before"),
            Self::NoRun => f.write_str("no allocation begins there, or it was freed before"),
        }
    }
}

/// Serves blocks of all size classes, from thread caches and from slabs of one zone.
pub(crate) struct SizeClasses {
    pub(crate) slabs: SlabTable,
}

impl SizeClasses {
    /// Creates the size classes, which are served from slabs in `zone`.
    ///
    /// # Errors
    /// The system's error, if it refuses memory for the tables.
    pub(crate) fn new(zone: &Zone) -> Result<Self, Errno> {
        Ok(Self { slabs: SlabTable::new(zone)? })
    }

    /// Returns the class of the block at an address, if the address is in a slab.
    #[inline(always)]
    pub(crate) fn class_at(&self, at: NonNull<u8>) -> Option<Class> {
        self.slabs.class_at(at.addr().get())
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn alloc(&self, zone: &Zone, class: Class, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        front::alloc(class).map_or_else(|| self.fetch(zone, class, limit), Ok)
    }

    #[cold]
    fn fetch(&self, zone: &Zone, class: Class, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        let mut found = [0; BATCH];
        // The maximum number of blocks to fetch in one batch.
        let most = (tuning::fetch_bytes() / class.block_bytes()).clamp(1, tuning::fetch_blocks().clamp(1, BATCH));
        let most = most.min(class.capacity() / 2);
        if let Some(cache) = front::join_and_enter() {
            // The cache may nevertheless contain blocks: this request may have come here to run a decay tick, another thread may have
            // claimed the cache at the first attempt, or a signal handler may have filled it in between.
            if let Some(cached) = front::take(&cache, class) {
                tick_soon(&cache);
                drop(cache);
                gate::tick();
                return Ok(cached);
            }
            let wanted = cache.next_batch(class, most).max(class.blocks_by_lines());
            let fetched = self.slabs.take(zone, class, limit, &mut found[..wanted])?;
            // The lowest address is handed out first.
            for &block in found[1..fetched].iter().rev() {
                // There is room: the cache has no block of this class, and a batch is at most half of its capacity.
                cache.push(class, block as u64);
            }
            cache.handed_out(class);
            tick_soon(&cache);
        } else {
            self.slabs.take(zone, class, limit, &mut found[..1])?;
            front::count_block_past_cache(class.block_bytes());
        }
        gate::tick();
        Ok(front::block_at(found[0]))
    }

    /// Like [`front::put`], for a caller that may pass an address at which no block begins, or free a block twice. Also returns `false` if
    /// either seems to be the case; [`check`](Self::check) finds out which.
    ///
    /// # Safety
    /// If `at` came from [`alloc`](Self::alloc), it is of this class, and must not be used afterwards.
    #[cfg(feature = "c-api")]
    #[inline(always)]
    pub(crate) unsafe fn put_checked(&self, class: Class, at: NonNull<u8>) -> bool {
        let block = at.addr().get();
        if !self.slabs.begins_block(class, block) {
            return false;
        }
        let Some(cache) = front::enter() else { return false };
        let is_cached = cache.push_unless_last(class, block as u64);
        if is_cached {
            cache.taken_back(class);
        }
        is_cached
    }

    /// Checks a pointer into a slab of this class before it is freed.
    ///
    /// # Errors
    /// [`NotFreeable::InBlock`] if no block begins there; [`NotFreeable::FreedBlock`] if the block is among those that this thread freed
    /// last.
    #[cfg(feature = "c-api")]
    pub(crate) fn check(&self, class: Class, at: NonNull<u8>) -> Result<(), NotFreeable> {
        let (address, bytes) = (at.addr().get(), class.block_bytes());
        if !self.slabs.begins_block(class, address) {
            return Err(NotFreeable::InBlock { offset: address - self.slabs.block_around(class, address), bytes });
        }
        let is_cached = front::enter().is_some_and(|cache| cache.is_among_last(class, address as u64));
        if is_cached { Err(NotFreeable::FreedBlock { bytes }) } else { Ok(()) }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc) with the same zone, is of this class, and must not be used afterwards.
    pub(crate) unsafe fn dealloc(&self, zone: &Zone, class: Class, at: NonNull<u8>) {
        // SAFETY: upheld by the caller.
        if !unsafe { front::put(class, at) } {
            self.bring_back(zone, class, at.addr().get() as u64);
        }
    }

    #[cold]
    fn bring_back(&self, zone: &Zone, class: Class, block: u64) {
        if let Some(cache) = front::join_and_enter() {
            if !cache.push(class, block) {
                // The older half returns to the slabs, because the newer half is more likely to be in the processor's caches.
                self.flush(zone, &cache, class, class.capacity() / 2);
                cache.push(class, block);
            }
            cache.taken_back(class);
        } else {
            self.slabs.put(zone, class, std::iter::once(block as usize));
            front::count_returned_past_cache(class.block_bytes());
        }
        gate::tick();
    }

    fn flush(&self, zone: &Zone, cache: &Cache, class: Class, keep: usize) {
        self.slabs.put(zone, class, cache.take_first(class, keep));
    }

    /// Returns all blocks of a cache to their slabs. Only a thread that entered or claimed the cache may call this.
    pub(crate) fn empty(&self, zone: &Zone, cache: &Cache) {
        Class::all().filter(|&class| cache.holds(class)).for_each(|class| self.flush(zone, cache, class, 0));
    }

    /// Empties the caches of all threads that are not using theirs at this moment. If `and_storage` is set, purges the memory in which
    /// these caches keep the addresses of their blocks. A thread faults that memory in again when its cache next takes a block.
    pub(crate) fn empty_caches(&self, zone: &Zone, and_storage: bool) {
        front::claim_all(|cache| {
            self.empty(zone, cache);
            if and_storage {
                front::clear_storage(cache);
            }
        });
    }

    /// Like [`empty_caches`](Self::empty_caches), for a request of `request_bytes`: empties the caches of some threads. The next call
    /// empties those of other threads.
    pub(crate) fn empty_some_caches(&self, zone: &Zone, request_bytes: usize) {
        front::claim_some(caches_of_request(request_bytes), |cache| self.empty(zone, cache));
    }

    /// Returns how many calls of [`empty_some_caches`](Self::empty_some_caches) it takes to empty all caches.
    pub(crate) fn calls_to_empty(&self, request_bytes: usize) -> usize {
        front::visited().div_ceil(caches_of_request(request_bytes)).max(1)
    }

    /// Returns the total size of live blocks, in bytes. It is approximate while threads allocate.
    pub(crate) fn live_bytes(&self) -> usize {
        let sums = front::sums();
        // While the sums are computed, a thread may free a block that another thread allocated.
        sums.blocks.bytes.saturating_sub(sums.returned_bytes) as usize
    }

    /// Returns the total size of the blocks in thread caches, in bytes.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.slabs.taken_bytes().saturating_sub(self.live_bytes())
    }
}

/// If a purge is unfinished, makes the cache's owner continue it at one of its next requests. Call this after the current request is
/// counted: before that, the count may be exactly at a tick, and would not jump to the next one.
fn tick_soon(cache: &Cache) {
    if decay::is_unfinished() {
        cache.tick_within(tuning::purge_requests());
    }
}

/// Returns the maximum number of caches that a request of `request_bytes` empties.
fn caches_of_request(request_bytes: usize) -> usize {
    (tuning::request_caches() + request_bytes / tuning::purge_ahead_bytes().max(1)).max(1)
}
