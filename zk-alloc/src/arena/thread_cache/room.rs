//! The memory in which caches keep the addresses of their blocks.
#![allow(unsafe_code, reason = "purges memory")]

use std::sync::atomic::Ordering;

use super::cache::Cache;
use super::exit::AtExit;
use crate::classes;
use crate::os;

/// Room for the blocks of all caches, which each gets with its first thread.
#[derive(Debug)]
pub(crate) struct CacheStorage {
    at_exit: AtExit,
}

/// Bytes of one cache's room, in whole pages of any kernel.
const STORAGE_BYTES: usize = (classes::PLACES * size_of::<u64>()).next_multiple_of(64 << 10);

impl CacheStorage {
    pub(crate) fn new(at_exit: AtExit) -> Self {
        Self { at_exit }
    }

    pub(super) fn at_exit(&self) -> AtExit {
        self.at_exit
    }

    /// Gives a cache of the caller's room for its blocks; `false` where the system has none.
    pub(super) fn init_storage(cache: &Cache) -> bool {
        if !cache.blocks().load(Ordering::Relaxed).is_null() {
            return true;
        }
        let Ok(mapping) = os::map_zeroed(STORAGE_BYTES) else { return false };
        cache.blocks().store(mapping.start().as_ptr().cast(), Ordering::Relaxed);
        // As the cache, for ever.
        std::mem::forget(mapping);
        true
    }

    /// Purges the table of an empty cache. For the thread that owns or claims it.
    pub(crate) fn clear(&self, cache: &Cache) {
        let blocks = cache.blocks().load(Ordering::Relaxed);
        if !blocks.is_null() {
            // SAFETY: the part of this cache, which holds nothing: all of its counts are zero.
            let _ = unsafe { os::discard(blocks.cast(), STORAGE_BYTES) };
        }
    }
}
