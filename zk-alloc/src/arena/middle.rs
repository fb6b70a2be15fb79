//! The middle sizes: blocks come from the thread's cache, which fetches them from slabs and brings them back, many at once.
#![allow(unsafe_code, reason = "hands out memory")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::budget::Limit;
use super::decay;
use super::slab::SlabTable;
use super::thread_cache::{self, Cache, Room, Totals};
use super::zone::{Shortage, Zone};
use crate::classes::Class;
use crate::os::Errno;

/// The most blocks that are fetched at once, and their bytes.
const FETCH_BLOCKS: usize = 32;
const FETCH_BYTES: usize = 16 << 10;

/// The most blocks of `bytes` that are fetched at once by a thread that keeps `capacity` at most.
pub(crate) fn fetch_most(bytes: usize, capacity: usize) -> usize {
    (FETCH_BYTES / bytes).clamp(1, FETCH_BLOCKS).min(capacity / 2)
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Middle {
    slabs: SlabTable,
    room: Room,
    /// What was served past the caches.
    allocations: AtomicU64,
    bytes: AtomicU64,
    live_bytes: AtomicU64,
}

impl Middle {
    /// Slabs in `zone`. `at_exit` is called on each exiting thread that has a cache.
    ///
    /// # Errors
    /// The system's, when it grants no memory for the tables.
    pub(crate) fn new(zone: &Zone, at_exit: unsafe extern "C" fn(*mut c_void)) -> Result<Self, Errno> {
        Ok(Self {
            slabs: SlabTable::new(zone)?,
            room: Room::new(at_exit),
            allocations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
        })
    }

    /// The class of the block at an address, if it is one.
    #[inline(always)]
    pub(crate) fn class_at(&self, at: NonNull<u8>) -> Option<Class> {
        self.slabs.class_at(at.addr().get())
    }

    /// Finds a cache for this thread, if it has none yet.
    #[cold]
    pub(crate) fn join(&self) {
        drop(thread_cache::join_and_enter(&self.room));
    }

    /// A block for `size` bytes.
    ///
    /// # Errors
    /// See [`Shortage`].
    pub(crate) fn alloc(&self, zone: &Zone, class: Class, size: usize, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        alloc_cached(class, size).map_or_else(|| self.fetch(zone, class, size, limit), Ok)
    }

    #[cold]
    fn fetch(&self, zone: &Zone, class: Class, size: usize, limit: Limit) -> Result<NonNull<u8>, Shortage> {
        let mut found = [0; FETCH_BLOCKS];
        let most = fetch_most(class.block_bytes(), class.capacity());
        if let Some(cache) = thread_cache::join_and_enter(&self.room) {
            // It may keep some all the same: it is time to tick, or another thread claimed the cache when this one looked, or a handler
            // came in between.
            if let Some(kept) = take_cached(&cache, class, size) {
                drop(cache);
                decay::tick();
                return Ok(kept);
            }
            let wanted = cache.next_batch(class, most).max(class.blocks_by_lines());
            let fetched = self.slabs.take(zone, class, limit, &mut found[..wanted])?;
            // The lowest address is handed out first.
            for &block in found[1..fetched].iter().rev() {
                // There is room: it has none, and asked for half of what it may keep at most.
                cache.push(class, block as u64);
            }
            cache.handed_out(class, size);
        } else {
            self.slabs.take(zone, class, limit, &mut found[..1])?;
            self.allocations.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(size as u64, Ordering::Relaxed);
            self.live_bytes.fetch_add(class.block_bytes() as u64, Ordering::Relaxed);
        }
        decay::tick();
        Ok(at(found[0]))
    }

    /// Takes a block back, for this thread to keep; `false`, and nothing done, where it has no room.
    ///
    /// # Safety
    /// As for [`dealloc`](Self::dealloc).
    #[inline(always)]
    pub(crate) unsafe fn keep(&self, class: Class, at: NonNull<u8>) -> bool {
        let Some(cache) = thread_cache::enter() else { return false };
        let is_cached = cache.push(class, at.addr().get() as u64);
        if is_cached {
            cache.taken_back(class);
        }
        is_cached
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// `at` came from [`alloc`](Self::alloc) with the same zone, is of this class, and nobody uses it any more.
    pub(crate) unsafe fn dealloc(&self, zone: &Zone, class: Class, at: NonNull<u8>) {
        // SAFETY: the caller's.
        if !unsafe { self.keep(class, at) } {
            self.bring_back(zone, class, at.addr().get() as u64);
        }
    }

    #[cold]
    fn bring_back(&self, zone: &Zone, class: Class, block: u64) {
        if let Some(cache) = thread_cache::join_and_enter(&self.room) {
            if !cache.push(class, block) {
                // The half that came first goes: the last is still in the processor's caches.
                self.flush(zone, &cache, class, class.capacity() / 2);
                cache.push(class, block);
            }
            cache.taken_back(class);
        } else {
            self.slabs.put(zone, class, std::iter::once(block as usize));
            self.live_bytes.fetch_sub(class.block_bytes() as u64, Ordering::Relaxed);
        }
        decay::tick();
    }

    fn flush(&self, zone: &Zone, cache: &Cache, class: Class, keep: usize) {
        self.slabs.put(zone, class, cache.take_first(class, keep));
    }

    /// Brings back all that a cache keeps. For whoever is in it.
    pub(crate) fn empty(&self, zone: &Zone, cache: &Cache) {
        Class::all().filter(|&class| cache.keeps(class)).for_each(|class| self.flush(zone, cache, class, 0));
    }

    /// Brings back what threads keep that are not allocating at this moment.
    pub(crate) fn empty_caches(&self, zone: &Zone) {
        thread_cache::claim_all(|cache| self.empty(zone, cache));
    }

    /// As [`empty_caches`](Self::empty_caches); the memory in which the caches kept their blocks goes back as well. Threads
    /// page it in again when they next free something.
    pub(crate) fn vacate_caches(&self, zone: &Zone) {
        thread_cache::claim_all(|cache| {
            self.empty(zone, cache);
            self.room.clear(cache);
        });
    }

    /// Purges the pages of free blocks until `wanted_bytes` are back. Returns how many went.
    pub(crate) fn purge(&self, zone: &Zone, wanted_bytes: usize) -> usize {
        self.slabs.purge(zone, wanted_bytes)
    }

    /// As [`Zone::purge_unaccounted`], for the slabs that lie there.
    pub(crate) fn purge_unaccounted(&self, zone: &Zone, at: NonNull<u8>, bytes: usize) {
        self.slabs.purge_unaccounted(zone, at, bytes);
    }

    /// Blocks handed out, and the bytes that were asked for in them, since the process started.
    pub(crate) fn totals(&self) -> Totals {
        let kept = thread_cache::block_totals();
        Totals {
            allocations: kept.allocations + self.allocations.load(Ordering::Relaxed),
            bytes: kept.bytes + self.bytes.load(Ordering::Relaxed),
        }
    }

    /// Bytes of the blocks that are alive, and nearly so while threads allocate.
    pub(crate) fn live_bytes(&self) -> usize {
        let sum = thread_cache::live_block_bytes().wrapping_add(self.live_bytes.load(Ordering::Relaxed));
        // Of what moved between two threads meanwhile only one end may have been seen.
        (sum as i64).max(0) as usize
    }

    /// Bytes of the blocks that threads keep.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.slabs.taken_bytes().saturating_sub(self.live_bytes())
    }

    /// Slabs in use, and their bytes.
    pub(crate) fn slabs(&self) -> (usize, usize) {
        self.slabs.in_use()
    }
}

/// A block for `size` bytes, of those that this thread keeps.
#[inline(always)]
pub(super) fn alloc_cached(class: Class, size: usize) -> Option<NonNull<u8>> {
    let cache = thread_cache::enter()?;
    if cache.is_to_tick() { None } else { take_cached(&cache, class, size) }
}

/// As [`alloc_cached`], for whoever is in the cache.
#[inline(always)]
fn take_cached(cache: &Cache, class: Class, size: usize) -> Option<NonNull<u8>> {
    let block = cache.pop(class)?;
    cache.handed_out(class, size);
    Some(at(block as usize))
}

/// The pointer to a block, which the caches and slabs keep as an address.
#[inline(always)]
fn at(address: usize) -> NonNull<u8> {
    // Within the region, whose provenance was exposed when it was reserved.
    let at = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: what `SlabTable::take` found, or `Cache::push` was given, is the address of a block, which lies in a slab of the region.
    unsafe { NonNull::new_unchecked(at) }
}
