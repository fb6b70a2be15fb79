//! This process's mappings, as the kernel lists them.
#![allow(unsafe_code, reason = "asks the kernel about mappings")]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::time::Duration;
use std::{fs, thread};

use super::blocks::{Block, MIB, RESIDENT};
use zk_alloc::{HugePagesOutcome, stats};

/// A mapping, as listed in `/proc/self/smaps`.
#[derive(Debug, Default)]
pub(crate) struct Map {
    range: Range<usize>,
    /// The access rights, such as `rw-p`.
    pub(crate) access: String,
    resident_bytes: usize,
    /// The value of `VmFlags`: flags of two letters each (proc(5)).
    flags: String,
}

impl Map {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|own| own == flag)
    }
}

fn maps() -> Vec<Map> {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("Linux has it");
    let mut maps: Vec<Map> = Vec::new();
    for line in smaps.lines() {
        if let Some(range) = range(line) {
            let access = line.split(' ').nth(1).unwrap_or_default().to_owned();
            maps.push(Map { range, access, ..Map::default() });
        }
        let Some(map) = maps.last_mut() else { continue };
        if let Some(kib) = line.strip_prefix("Rss:") {
            map.resident_bytes = kib.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            map.flags = flags.to_owned();
        }
    }
    maps
}

/// Returns the number of mappings of this process.
pub(crate) fn count() -> usize {
    fs::read_to_string("/proc/self/maps").expect("Linux has it").lines().count()
}

/// Returns the mapping that contains an address, if any.
pub(crate) fn map_of(address: usize) -> Option<Map> {
    maps().into_iter().find(|map| map.range.contains(&address))
}

/// The arena's region, identified by an address in it.
///
/// The arena maps parts of its region as it grows. On each side of the region, a range of the same length has no other mappings. So all
/// mappings within the length of the region from an address in it belong to the arena.
pub(crate) struct Region {
    address: usize,
    reserved_bytes: usize,
}

impl Region {
    /// Finds the region by allocating a block, which is never freed.
    pub(crate) fn new() -> Self {
        Self::around(ManuallyDrop::new(Block::written(&RESIDENT, MIB)).address())
    }

    pub(crate) fn around(address: usize) -> Self {
        Self { address, reserved_bytes: stats().address_space_bytes }
    }

    fn maps(&self) -> Vec<Map> {
        let (from, to) = (self.address.saturating_sub(self.reserved_bytes), self.address + self.reserved_bytes);
        let found: Vec<_> = maps().into_iter().filter(|map| from < map.range.end && map.range.start < to).collect();
        assert!(found.iter().any(|map| map.range.contains(&self.address)), "{:#x} is not mapped", self.address);
        found
    }

    /// Returns the resident size of the region in bytes, as counted by the kernel.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.maps().iter().map(|map| map.resident_bytes).sum()
    }

    /// Fails unless `stats()` and the kernel agree on the resident size. Tries several times, because another thread may allocate between
    /// the two readings.
    #[track_caller]
    pub(crate) fn check(&self, after: &str) {
        let figures = || (stats().resident_bytes, self.resident_bytes());
        let is_near = |&(reported, found): &(usize, usize)| reported.abs_diff(found) <= tolerance_bytes(found);
        for _ in 0..20 {
            if is_near(&figures()) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let (reported, found) = figures();
        panic!("stats() says {reported} bytes are resident, the kernel says {found}, after {after}\n{}", stats());
    }

    /// Collapses the 2 MiB blocks that khugepaged would collapse into huge pages. With the kernel's defaults, these are all blocks with a
    /// resident page, except where the arena forbids huge pages.
    pub(crate) fn make_huge(&self) {
        for Map { range, .. } in self.maps().into_iter().filter(|map| map.resident_bytes > 0) {
            let blocks = (range.start.next_multiple_of(BLOCK_BYTES)..=range.end - BLOCK_BYTES).step_by(BLOCK_BYTES);
            for block in blocks.filter(|&block| resident_pages(block, BLOCK_BYTES) > 0) {
                let start = std::ptr::with_exposed_provenance_mut(block);
                // SAFETY: the call changes neither the contents of the memory nor its owner.
                unsafe { libc::madvise(start, BLOCK_BYTES, libc::MADV_COLLAPSE) };
            }
        }
    }
}

/// The size of a huge page, in bytes.
const BLOCK_BYTES: usize = 2 << 20;

/// Returns the number of resident pages of 4 KiB in the `bytes` bytes from `at`. The provenance of a pointer to this range must have been
/// exposed.
pub(crate) fn resident_pages(at: usize, bytes: usize) -> usize {
    let mut pages = vec![0u8; bytes.div_ceil(4 << 10)];
    let start = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the call does not access the range. It writes one byte for each page, and `pages` is long enough for pages of 4 KiB.
    let answered = unsafe { libc::mincore(start, bytes, pages.as_mut_ptr().cast()) };
    assert_eq!(answered, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 == 1).count()
}

/// Returns the maximum difference allowed between the resident sizes of `stats()` and the kernel.
pub(crate) fn tolerance_bytes(resident_bytes: usize) -> usize {
    let exact = resident_bytes / 100 + (2 << 20);
    // The kernel makes and splits huge pages without the arena's knowledge. A write may fault in a whole huge page where all pages had been
    // purged. Since Linux 6.12, when a huge page is split, the kernel frees the pages in it that are zero.
    let is_huge = matches!(stats().huge_pages, Some(HugePagesOutcome::Auto | HugePagesOutcome::Always));
    if is_huge { exact + (4 << 20) + resident_bytes / 10 } else { exact }
}

/// Parses the address range from the first line of a mapping's entry. Returns `None` for other lines.
fn range(line: &str) -> Option<Range<usize>> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
}
