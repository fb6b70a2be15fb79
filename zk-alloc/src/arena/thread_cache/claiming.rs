//! Taking the blocks out of other threads' caches.
#![allow(unsafe_code, reason = "follows a list through the claimed caches")]

use std::ptr;

use super::cache::Cache;
use crate::sync::{AtomicU64, Ordering};

/// The [generation](crate::os::process_generation) of the process whose thread is claiming caches; 0 is none.
#[derive(Debug)]
pub(crate) struct Claiming(AtomicU64);

impl Claiming {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Claims those of `caches` that hold blocks, has `fence` reach all other threads (`false` if it can't), and hands `empty`
    /// each cache whose thread is not at it; among them `own`, the calling thread's. Does nothing while another thread of the
    /// generation `by` does the same.
    pub(crate) fn claim_all<'a>(
        &self,
        caches: impl Iterator<Item = &'a Cache>,
        by: u64,
        own: Option<&Cache>,
        fence: impl FnOnce() -> bool,
        mut empty: impl FnMut(&'a Cache),
    ) {
        let is_own = |cache: &Cache| own.is_some_and(|own| std::ptr::eq(own, cache));
        // One at a time: two threads that claim at once could not tell their claims apart.
        let before = self.0.load(Ordering::Relaxed);
        if before == by || self.0.compare_exchange(before, by, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // The claimed caches are a list: a thread that exits meanwhile is not among `caches` any more.
        let mut last: *const Cache = ptr::null();
        let mut others = 0;
        for cache in caches.filter(|cache| cache.has_blocks()) {
            if cache.claim(by) {
                cache.claimed_before().store(last.cast_mut(), Ordering::Relaxed);
                last = cache;
                others += usize::from(!is_own(cache));
            }
        }
        // Without the fence only this thread's own cache is known not to be in use.
        let fenced = others == 0 || fence();
        // SAFETY: null, or one of `caches`, which live for `'a`. Only this thread links the caches that it claimed.
        while let Some(cache) = unsafe { last.as_ref::<'a>() } {
            last = cache.claimed_before().load(Ordering::Relaxed);
            if (fenced || is_own(cache)) && !cache.is_in_use() {
                empty(cache);
            }
            cache.unclaim();
        }
        self.0.store(0, Ordering::Release);
    }
}
