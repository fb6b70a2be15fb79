//! Taking the blocks out of other threads' caches.

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
        caches: &'a [Cache],
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
        let mut others = 0;
        for cache in caches.iter().filter(|cache| cache.has_blocks()) {
            others += usize::from(cache.claim(by) && !is_own(cache));
        }
        // Without the fence only this thread's own cache is known not to be in use.
        let fenced = others == 0 || fence();
        for cache in caches.iter().filter(|cache| cache.is_claimed_by(by)) {
            if (fenced || is_own(cache)) && !cache.is_in_use() {
                empty(cache);
            }
            cache.unclaim();
        }
        self.0.store(0, Ordering::Release);
    }
}
