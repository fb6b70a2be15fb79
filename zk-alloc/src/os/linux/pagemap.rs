//! Copies memory without touching pages that nobody touched.
//!
//! mincore(2) does not tell a page that was written to swap from one that was never touched. `/proc/self/pagemap` tells the two apart.
#![allow(unsafe_code, reason = "copies memory")]

use std::ptr::copy_nonoverlapping;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};

use super::real_page_bytes;
use crate::os::is_in_sandbox;

/// Pages that are looked at together. The stack may be small.
const PART: usize = 128;

/// Copies `len` bytes between two runs of pages. Pages of the source that hold nothing (neither in memory nor in swap) are not touched.
/// At the target, they are cleared if something is held there. Returns `false`, and does nothing, if the system does not tell what is held.
///
/// # Safety
/// Both ranges are committed, private and anonymous, and begin with a page. They do not overlap, and nobody else uses them.
pub(crate) unsafe fn copy_held(from: *const u8, to: *mut u8, len: usize) -> bool {
    let Some(pagemap) = Pagemap::open() else { return false };
    let page = real_page_bytes();
    let (mut in_source, mut in_target) = ([0; PART], [0; PART]);
    for offset in (0..len).step_by(PART * page) {
        let part = (len - offset).min(PART * page);
        let (from, to, pages) = (from.wrapping_add(offset), to.wrapping_add(offset), part.div_ceil(page));
        if !pagemap.read(from, &mut in_source[..pages]) || !pagemap.read(to, &mut in_target[..pages]) {
            // SAFETY: the caller's.
            unsafe { copy_nonoverlapping(from, to, len - offset) };
            return true;
        }
        let mut at = 0;
        while at < pages {
            let is_held = holds(in_source[at]);
            let alike = in_source[at..pages].iter().take_while(|&&entry| holds(entry) == is_held).count();
            let clear = in_target[at..at + alike].iter().position(|&entry| holds(entry));
            let bytes = (alike * page).min(part - at * page);
            // SAFETY: within the caller's ranges.
            unsafe {
                if is_held {
                    copy_nonoverlapping(from.add(at * page), to.add(at * page), bytes);
                } else if let Some(first) = clear {
                    // One page at a time: those behind it may hold nothing.
                    at += first;
                    to.add(at * page).write_bytes(0, page.min(part - at * page));
                    at += 1;
                    continue;
                }
            }
            at += alike;
        }
    }
    true
}

/// Makes the system calls of a copy once.
pub(super) fn rehearse() {
    drop(Pagemap::open());
}

/// Whether something is behind a page: bit 63 of its entry stands for memory, and bit 62 for swap (and for pages on their way).
fn holds(entry: u64) -> bool {
    entry >> 62 != 0
}

/// `/proc/self/pagemap`: 8 bytes for each page of the process.
struct Pagemap(OwnedFd);

impl Pagemap {
    /// `None` if the process may not read it, or if it is not about this process's addresses (an emulator has others).
    fn open() -> Option<Self> {
        if is_in_sandbox() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = Self(rustix::fs::openat(CWD, c"/proc/self/pagemap", flags, Mode::empty()).ok()?);
        // This page of the stack is in memory.
        let mut own = [0];
        let here = (&raw const own).cast();
        (pagemap.read(here, &mut own) && holds(own[0])).then_some(pagemap)
    }

    /// Reads the entries of the pages from `at` on; `false` if the system refuses.
    fn read(&self, at: *const u8, entries: &mut [u64]) -> bool {
        let len = size_of_val(entries);
        // SAFETY: as many bytes as the entries have. Any bytes are a number.
        let bytes = unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), len) };
        let place = (at.addr() / real_page_bytes() * size_of::<u64>()) as u64;
        rustix::io::pread(&self.0, bytes, place) == Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{self, count_resident, page_bytes};

    const PAGES: usize = 3 * PART + 7;

    /// Every second page of the source holds something, or none, and of the target every third.
    #[test]
    fn copies_are_equal_and_touch_nothing_that_was_not_touched() {
        let page = page_bytes();
        let len = PAGES * page;
        for (in_source, in_target) in [(2, 3), (1, 1), (PAGES, PAGES), (5, PAGES), (PAGES, 2)] {
            let [source, target] = [(); 2].map(|()| os::map_zeroed(len).unwrap());
            let (from, to) = (source.start().as_ptr(), target.start().as_ptr());
            // SAFETY: two mappings that this test owns. The last page is copied in part.
            unsafe {
                let _ = os::forbid_huge(from, len);
                let _ = os::forbid_huge(to, len);
                (0..PAGES)
                    .step_by(in_source)
                    .for_each(|index| from.add(index * page).write_bytes(1 | index as u8, page));
                (0..PAGES).step_by(in_target).for_each(|index| to.add(index * page).write_bytes(0xA5, page));
                let copied = len - 100;
                let held = |at| count_resident(at, len).unwrap();
                let expected = (0..PAGES).filter(|index| index % in_source == 0 || index % in_target == 0).count();
                if !copy_held(from, to, copied) {
                    return;
                }
                assert_eq!(held(to), expected * page, "every {in_source}, every {in_target}");
                assert_eq!(held(from), PAGES.div_ceil(in_source) * page);
                let [source, target] = [from, to].map(|at| std::slice::from_raw_parts(at, copied));
                assert!(source == target, "every {in_source}, every {in_target}");
                let rest = std::slice::from_raw_parts(to.add(copied), 100);
                let before = if (PAGES - 1) % in_target == 0 { 0xA5 } else { 0 };
                assert!(rest.iter().all(|&byte| byte == before), "nothing beyond the length changes");
            }
        }
    }
}
