//! How much of a zone is mapped: a prefix, which only grows.
//!
//! Two threads must not map the same addresses. The second would find them taken, and could not tell whether by the first thread or by a
//! foreign mapping. So one thread maps, and the others wait for 20 ms at most. Waiting is bounded because the mapping thread may never go
//! on: a signal handler of its own may be the waiter, or the waiter may be a forked child without that thread. After that time, the waiter
//! maps by itself. In the worst case it finds the place taken, and its request goes to the backing allocator.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::os;
use crate::tuning;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Mapped {
    /// How many pages are mapped, from the zone's start. Addresses beyond may hold foreign mappings.
    pages: AtomicUsize,
    is_growing: AtomicBool,
}

impl Mapped {
    pub(super) const fn new() -> Self {
        Self { pages: AtomicUsize::new(0), is_growing: AtomicBool::new(false) }
    }

    /// How many pages are mapped.
    #[inline(always)]
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Ordering::Acquire)
    }

    /// Makes sure that at least `until` pages are mapped; `false` if that fails. `map` maps from a page on, and returns the end.
    pub(super) fn reach(&self, until: usize, map: impl FnOnce(usize) -> Option<usize>) -> bool {
        until <= self.pages() || self.grow(until, map)
    }

    #[cold]
    fn grow(&self, until: usize, map: impl FnOnce(usize) -> Option<usize>) -> bool {
        let mut waited = 0;
        while waited < tuning::commit_spins() as u32 + tuning::commit_naps() as u32
            && self.is_growing.swap(true, Ordering::Acquire)
        {
            if waited < tuning::commit_spins() as u32 {
                spin_loop()
            } else {
                os::nap()
            }
            waited += 1;
            if until <= self.pages() {
                return true;
            }
        }
        let before = self.pages();
        if before < until {
            if let Some(end) = map(before) {
                self.pages.fetch_max(end, Ordering::AcqRel);
            }
        }
        self.is_growing.store(false, Ordering::Release);
        // Even if `map` failed, another thread may have mapped the range by now.
        until <= self.pages()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// If two threads map the same range, the second finds it taken. So it must wait for the first, and not map it again.
    #[test]
    fn threads_that_need_more_at_once_map_it_once() {
        for _ in 0..100 {
            let (mapped, maps) = (Mapped::new(), AtomicU32::new(0));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let map = |from: usize| {
                            assert_eq!(from, 0);
                            maps.fetch_add(1, Ordering::Relaxed);
                            os::nap();
                            Some(8)
                        };
                        assert!(mapped.reach(5, map));
                    });
                }
            });
            assert_eq!((maps.into_inner(), mapped.pages()), (1, 8));
        }
    }

    /// A forked child may find that a thread is mapping which only its parent has.
    #[test]
    fn one_who_never_ends_is_not_waited_for() {
        let mapped = Mapped::new();
        mapped.is_growing.store(true, Ordering::Relaxed);
        assert!(mapped.reach(3, |_| Some(4)) && mapped.reach(7, |from| Some(from + 4)));
        assert!(!mapped.reach(9, |_| None));
        assert_eq!(mapped.pages(), 8);
    }
}
