//! Measures the first touch of memory, and page faults on several threads at once.

use crate::machine::{host, process};
use anyhow::{Context, ensure};
use memmap2::{Advice, MmapMut};
use std::hint::black_box;
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
    /// How often a fault waited while the kernel moved other pages away, for each 2 MiB.
    pub(super) stalls: f64,
}

/// Measures the first touch of `bytes`, which must be whole huge pages: after `idle`, and warm.
pub(super) fn first_touch(pages: Pages, bytes: usize, idle: Duration) -> anyhow::Result<Touch> {
    thread::sleep(idle);
    let stalled_before = host::compaction_stalls();
    let (cold, huge_share) = touched(pages, bytes)?;
    let mut warm = (0..WARM).map(|_| Ok(touched(pages, bytes)?.0)).collect::<anyhow::Result<Vec<_>>>()?;
    let stalled = host::compaction_stalls().saturating_sub(stalled_before);
    warm.sort();
    let each = |took: Duration| took / (bytes / PAGE_BYTES) as u32;
    let stalls = stalled as f64 / ((WARM + 1) * (bytes / HUGE_BYTES)) as f64;
    Ok(Touch { pages, warm: each(warm[WARM / 2]), cold: each(cold), huge_share, stalls })
}

/// The time of one first touch, and the share of the memory in huge pages.
fn touched(pages: Pages, bytes: usize) -> anyhow::Result<(Duration, f64)> {
    let mut mapping = Mapping::new(bytes, pages)?;
    let huge_before = process::huge_page_bytes().unwrap_or(0);
    let began = Instant::now();
    mapping.touch(pages)?;
    let took = began.elapsed();
    let huge_bytes = process::huge_page_bytes().unwrap_or(0).saturating_sub(huge_before);
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
    let mut mappings = (0..threads).map(|_| Mapping::new(each, Pages::Small)).collect::<anyhow::Result<Vec<_>>>()?;
    let start = Barrier::new(threads + 1);
    let took = thread::scope(|scope| {
        let touch = |mapping| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                Mapping::touch(mapping, Pages::Small)
            })
        };
        let touching: Vec<_> = mappings.iter_mut().map(touch).collect();
        start.wait();
        let began = Instant::now();
        let done: Vec<_> = touching.into_iter().map(|thread| thread.join().expect("it does not panic")).collect();
        done.into_iter().collect::<anyhow::Result<()>>().map(|()| began.elapsed())
    })?;
    Ok((threads * each / PAGE_BYTES) as f64 / took.as_secs_f64())
}

/// Private memory that nothing has touched, on a boundary of 2 MiB.
struct Mapping {
    map: MmapMut,
    start: usize,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize, pages: Pages) -> anyhow::Result<Self> {
        ensure!(bytes > 0 && bytes.is_multiple_of(HUGE_BYTES), "{bytes} bytes are no whole number of huge pages");
        let mapped_bytes = bytes + HUGE_BYTES;
        let map = MmapMut::map_anon(mapped_bytes).with_context(|| format!("cannot map {mapped_bytes} bytes"))?;
        let address = map.as_ptr().addr();
        let start = address.next_multiple_of(HUGE_BYTES) - address;
        // A kernel without huge pages refuses both, and has small pages anyway.
        let _ =
            map.advise_range(if pages == Pages::Huge { Advice::HugePage } else { Advice::NoHugePage }, start, bytes);
        Ok(Self { map, start, bytes })
    }

    fn touch(&mut self, pages: Pages) -> anyhow::Result<()> {
        let end = self.start + self.bytes;
        if pages == Pages::Populated {
            return (self.start..end).step_by(HUGE_BYTES).try_for_each(|from| {
                let populated = self.map.advise_range(Advice::PopulateWrite, from, HUGE_BYTES);
                populated.context("MADV_POPULATE_WRITE needs Linux 5.14")
            });
        }
        for from in (self.start..end).step_by(PAGE_BYTES) {
            // Nothing reads it, and the write must stay.
            *black_box(&mut self.map[from]) = 1;
        }
        Ok(())
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
