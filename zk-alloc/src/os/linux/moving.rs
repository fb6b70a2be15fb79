//! Pages that move, grow together, or are counted.
#![allow(unsafe_code, reason = "moves mapped memory")]

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use super::{PRIVATE, keeping_errno, real_page_bytes};
use crate::os::pages::covered;
use crate::os::{Errno, is_in_sandbox};

/// Moves the pages of `from` to `to`, without copying: afterwards `to` holds what `from` held, as readable, writable and
/// advised as that was, and `from` is as it was but reads as zeroes (mremap(2) with `MREMAP_DONTUNMAP`, Linux 5.7).
///
/// # Errors
/// The system's: `EINVAL` where the kernel knows no such call, `EFAULT` before Linux 6.17 where `from` is more than one of
/// its mappings (parts that were advised differently, or moved before), `ENOMEM` where the process has too many of them.
/// Then `from` is as it was, and `to` is committed still, but holds anything, and may have lost what was advised for it.
///
/// # Safety
/// Both ranges are committed and the caller's alone, neither overlaps the other, and what `to` holds is not needed.
pub(crate) unsafe fn move_pages(from: *mut u8, to: *mut u8, len: usize) -> Result<(), Errno> {
    let (len, _) = (covered(from, len)?, covered(to, len)?);
    // SAFETY: the caller's: what is replaced at `to` is not needed, and what leaves `from` is wanted at `to`.
    let moved =
        unsafe { mremap_fixed(from.cast(), len, len, MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP, to.cast()) };
    if let Err(refused) = moved {
        // The kernel makes room at `to` before it looks at all that may be wrong: a refusal can leave a hole there, in
        // which another thread's mapping may come to lie. Filled again, unless there is none.
        // SAFETY: maps only what is not mapped; the range is the caller's.
        let filled = unsafe {
            mmap_anonymous(to.cast(), len, ProtFlags::READ | ProtFlags::WRITE, PRIVATE | MapFlags::FIXED_NOREPLACE)
        };
        // Linux before 4.17 and gVisor take the place for a wish: they map elsewhere what was not missing.
        if let Some(elsewhere) = filled.ok().filter(|&at| at != to.cast()) {
            // SAFETY: mapped one line above, and nobody knows of it.
            let _ = unsafe { munmap(elsewhere, len) };
        }
        return Err(refused.into());
    }
    Ok(())
}

/// How many bytes of the range are in memory, in whole pages; `None` where the system does not say.
///
/// # Safety
/// The range is mapped, and stays so meanwhile. (It is not read.)
pub(crate) unsafe fn count_resident(at: *const u8, len: usize) -> Option<usize> {
    if is_in_sandbox() {
        return None;
    }
    // 2 MiB at a time, with pages of 4 KiB: the stack may be small.
    let mut answers = [0u8; 512];
    let page = real_page_bytes();
    let len = covered(at, len).ok()?;
    let mut pages = 0;
    for offset in (0..len).step_by(answers.len() * page) {
        let part = (len - offset).min(answers.len() * page);
        let start = at.wrapping_add(offset).cast_mut().cast();
        // SAFETY: a byte for each page of the part is written to `answers`, which has as many.
        keeping_errno(|| unsafe { libc::mincore(start, part, answers.as_mut_ptr()) }).ok()?;
        // Only the lowest bit has a meaning.
        pages += answers[..part.div_ceil(page)].iter().filter(|&&answer| answer & 1 == 1).count();
    }
    Some(pages * page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{self, Mapping, page_bytes};

    const LEN: usize = 1 << 20;

    fn mapped(len: usize, byte: u8) -> (Mapping, *mut u8) {
        let mapping = os::map_zeroed(len).unwrap();
        let at = mapping.start().as_ptr();
        if byte != 0 {
            // SAFETY: the mapping made above.
            unsafe { at.write_bytes(byte, len) };
        }
        (mapping, at)
    }

    /// Whether all bytes of a range are `byte`.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn all(at: *const u8, len: usize, byte: u8) -> bool {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts(at, len) }.iter().all(|&found| found == byte)
    }

    #[test]
    fn moved_pages_hold_what_they_held_and_leave_zeroes_behind() {
        let (_from, from) = mapped(LEN, 1);
        let (_to, to) = mapped(LEN, 2);
        let page = page_bytes();
        // SAFETY: parts of two mappings of this test's.
        unsafe {
            // Linux before 5.7 refuses.
            if move_pages(from.add(page), to.add(page), LEN - 2 * page).is_err() {
                return;
            }
            assert!(all(from, page, 1) && all(from.add(page), LEN - 2 * page, 0) && all(from.add(LEN - page), page, 1));
            assert!(all(to, page, 2) && all(to.add(page), LEN - 2 * page, 1) && all(to.add(LEN - page), page, 2));
            // Both can be written to, and go back.
            from.write_bytes(3, LEN);
            to.write_bytes(4, LEN);
        }
    }

    /// Without care the kernel would leave no mapping where the pages were to go.
    #[test]
    fn a_refused_move_loses_neither_side() {
        let (_from, from) = mapped(LEN, 1);
        let (_to, to) = mapped(LEN, 2);
        let page = page_bytes();
        // SAFETY: parts of two mappings of this test's.
        unsafe {
            // Two mappings instead of one.
            os::leave_out_of_dumps(from, LEN / 2).unwrap();
            match move_pages(from, to, LEN) {
                Ok(()) => assert!(all(from, LEN, 0) && all(to, LEN, 1)),
                Err(_) => assert!(all(from, LEN, 1)),
            }
            from.write_bytes(3, LEN);
            to.write_bytes(4, LEN);
            for (from, to, len) in [(from.add(1), to, page), (from, to.add(1), page), (from, from, LEN), (from, to, 0)]
            {
                assert!(move_pages(from, to, len).is_err());
            }
            assert!(all(from, LEN, 3));
            to.write_bytes(5, LEN);
        }
    }

    #[test]
    fn resident_bytes_are_those_that_were_touched() {
        let (_mapping, at) = mapped(40 << 20, 0);
        let page = page_bytes();
        // SAFETY: the mapping made above. Huge pages would bring more than was touched.
        unsafe {
            let _ = os::forbid_huge(at, 40 << 20);
            assert_eq!(count_resident(at, 40 << 20), Some(0));
            for page_at in [0, 17 << 20, (40 << 20) - page] {
                at.add(page_at).write_bytes(1, page);
            }
            assert_eq!(count_resident(at, 40 << 20), Some(3 * page));
            assert_eq!(count_resident(at.add(page), 17 << 20), Some(page));
            assert_eq!(count_resident(at.add(1), page), None, "not the beginning of a page");
        }
    }
}
