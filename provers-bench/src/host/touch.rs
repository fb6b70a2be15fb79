//! Measures the first touch of memory, and page faults on several threads at once.
#![allow(unsafe_code, reason = "maps memory and touches it")]

use crate::machine::memory;
use anyhow::{Context, ensure};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// The bytes that a figure is for.
pub(super) const PAGE_BYTES: usize = 4 << 10;
const HUGE_BYTES: usize = 2 << 20;
/// Warm touches that are measured. The one before them has other memory behind it.
const WARM: usize = 3;

/// How memory is made resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// Page by page, without huge pages.
    Small,
    /// As [`Small`](Self::Small), with one `MADV_POPULATE_WRITE` for each 2 MiB.
    Populated,
    /// As the kernel does it where the process asks for huge pages (`MADV_HUGEPAGE`).
    Huge,
}

/// The cost of a first touch of [`PAGE_BYTES`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    pub(super) pages: Pages,
    /// Right after as much memory was freed.
    pub(super) warm: Duration,
    /// After the machine has idled.
    pub(super) cold: Duration,
    /// The share of the memory that lay in huge pages of 2 MiB, from 0 to 1.
    pub(super) huge_share: f64,
}

/// Measures the first touch of `bytes`, which must be whole huge pages: after `idle`, and warm.
pub(super) fn first_touch(pages: Pages, bytes: usize, idle: Duration) -> anyhow::Result<Touch> {
    thread::sleep(idle);
    let (cold, huge_share) = touched(pages, bytes)?;
    let mut warm = (0..WARM).map(|_| Ok(touched(pages, bytes)?.0)).collect::<anyhow::Result<Vec<_>>>()?;
    warm.sort();
    let each = |took: Duration| took / (bytes / PAGE_BYTES) as u32;
    Ok(Touch { pages, warm: each(warm[WARM / 2]), cold: each(cold), huge_share })
}

/// The time of one first touch, and the share of the memory in huge pages.
fn touched(pages: Pages, bytes: usize) -> anyhow::Result<(Duration, f64)> {
    let mapping = Mapping::new(bytes, pages)?;
    let huge_before = memory::huge_page_bytes().unwrap_or(0);
    let began = Instant::now();
    mapping.touch(pages)?;
    let took = began.elapsed();
    let huge_bytes = memory::huge_page_bytes().unwrap_or(0).saturating_sub(huge_before);
    Ok((took, huge_bytes as f64 / bytes as f64))
}

/// Page faults a second on `threads` threads, each in a mapping of its own: the median of three tries.
pub(super) fn faults_a_second(threads: usize, bytes: usize) -> anyhow::Result<f64> {
    let each = (bytes / threads).next_multiple_of(HUGE_BYTES);
    let mut rates = (0..WARM).map(|_| rate(threads, each)).collect::<anyhow::Result<Vec<_>>>()?;
    rates.sort_by(f64::total_cmp);
    Ok(rates[WARM / 2])
}

fn rate(threads: usize, each: usize) -> anyhow::Result<f64> {
    let mappings = (0..threads).map(|_| Mapping::new(each, Pages::Small)).collect::<anyhow::Result<Vec<_>>>()?;
    let start = Barrier::new(threads + 1);
    let took = thread::scope(|scope| {
        let touch = |mapping| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                Mapping::touch(mapping, Pages::Small)
            })
        };
        let touching: Vec<_> = mappings.iter().map(touch).collect();
        start.wait();
        let began = Instant::now();
        let done: Vec<_> = touching.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
        done.into_iter().collect::<anyhow::Result<()>>().map(|()| began.elapsed())
    })?;
    Ok((threads * each / PAGE_BYTES) as f64 / took.as_secs_f64())
}

/// Private memory that nothing has touched, on a boundary of 2 MiB.
struct Mapping {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping owns its memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize, pages: Pages) -> anyhow::Result<Self> {
        ensure!(bytes > 0 && bytes.is_multiple_of(HUGE_BYTES), "{bytes} bytes are no whole number of huge pages");
        let mapped_bytes = bytes + HUGE_BYTES;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: maps new memory, at a place that the kernel chooses.
        let at = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        ensure!(at != libc::MAP_FAILED, "cannot map {mapped_bytes} bytes: {}", io::Error::last_os_error());
        let mapped = NonNull::new(at.cast::<u8>()).context("memory at address 0")?;
        let skipped = mapped.addr().get().next_multiple_of(HUGE_BYTES) - mapped.addr().get();
        // SAFETY: less than a huge page, by which the mapping is longer.
        let start = unsafe { mapped.add(skipped) };
        let mapping = Self { mapped, mapped_bytes, start, bytes };
        // A kernel without huge pages refuses both, and has small pages anyway.
        let advice = if pages == Pages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        let _ = mapping.advise(0, bytes, advice);
        Ok(mapping)
    }

    fn touch(&self, pages: Pages) -> anyhow::Result<()> {
        if pages == Pages::Populated {
            return (0..self.bytes).step_by(HUGE_BYTES).try_for_each(|from| {
                self.advise(from, HUGE_BYTES, libc::MADV_POPULATE_WRITE).context("MADV_POPULATE_WRITE needs Linux 5.14")
            });
        }
        for from in (0..self.bytes).step_by(PAGE_BYTES) {
            // SAFETY: within the mapping, which only one thread touches. Volatile, because nothing reads it.
            unsafe { self.start.add(from).write_volatile(1) };
        }
        Ok(())
    }

    fn advise(&self, from: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: a part of the mapping; none of these pieces of advice changes contents.
        let done = unsafe { libc::madvise(self.start.as_ptr().wrapping_add(from).cast(), bytes, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_touch_takes_time_and_small_pages_are_small() {
        let touch = first_touch(Pages::Small, 8 << 20, Duration::ZERO).expect("memory");
        assert!(touch.warm > Duration::ZERO && touch.cold > Duration::ZERO, "{touch:?}");
        assert!(touch.huge_share < 0.01, "{touch:?}");
        assert!(faults_a_second(2, 8 << 20).expect("memory") > 0.0);
    }

    #[test]
    fn a_length_that_is_no_whole_huge_page_is_refused() {
        assert!(Mapping::new(PAGE_BYTES, Pages::Small).is_err());
    }
}
