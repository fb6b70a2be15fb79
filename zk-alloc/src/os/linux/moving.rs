//! Pages that move, grow together, or are counted.
#![allow(unsafe_code, reason = "moves mapped memory")]

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};

use super::{PRIVATE, keeping_errno, real_page_bytes};
use crate::os::pages::covered;
use crate::os::{self, NotMoved, is_in_sandbox};

/// Moves the pages of `from` to `to`, without copying (mremap(2) with `MREMAP_DONTUNMAP`, Linux 5.7). Afterwards `to` holds what
/// `from` held, as readable, writable and advised as that was. `from` stays mapped and reads as zeroes.
///
/// # Errors
/// The system's: `EINVAL` where the kernel knows no such call, `EFAULT` before Linux 6.17 where `from` is more than one of
/// its mappings (parts that were advised differently, or moved before), `ENOMEM` where the process has too many of them, or is over a
/// limit. Then `from` is as it was. If `to` is [whole](NotMoved::is_target_whole), it is accessible, but holds anything, and may have
/// lost what was advised for it. Otherwise nobody may touch it again.
///
/// # Safety
/// Both ranges are committed and the caller's alone, neither overlaps the other, and `to` holds zeroes.
pub(crate) unsafe fn move_pages(from: *mut u8, to: *mut u8, len: usize) -> Result<(), NotMoved> {
    let (len, _) = (covered(from, len)?, covered(to, len)?);
    // SAFETY: the caller's: what is replaced at `to` is not needed, and what leaves `from` is wanted at `to`.
    let moved =
        unsafe { mremap_fixed(from.cast(), len, len, MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP, to.cast()) };
    moved.map(drop).map_err(|refused| {
        if refused == Errno::NOMEM {
            // SAFETY: the caller's.
            unsafe { take_back(from, to, len) };
        }
        // SAFETY: the caller's.
        NotMoved { errno: refused.into(), is_target_whole: unsafe { fill_hole(to, len) } }
    })
}

/// From Linux 6.17 on, one call moves several mappings one after the other, and may fail in the midst, as where the process has too many
/// mappings. Copies the pages back that are at `to` by then: `from` reads as zeroes there, and up to the first page that was not moved.
///
/// # Safety
/// As for [`move_pages`], which was refused.
unsafe fn take_back(from: *mut u8, to: *mut u8, len: usize) {
    let page = real_page_bytes();
    // SAFETY: the caller asks for mapped pages only, and nobody writes to them.
    let is_zero =
        |at: *mut u8| unsafe { std::slice::from_raw_parts(at.cast::<u64>(), page / 8) }.iter().all(|&word| word == 0);
    for offset in (0..len).step_by(page) {
        let (back, moved) = (from.wrapping_add(offset), to.wrapping_add(offset));
        // A hole begins where no page was moved.
        if resident_bytes(moved, page).is_err() || !is_zero(back) {
            return;
        }
        if !is_zero(moved) {
            // SAFETY: two pages that are mapped, and the caller's.
            unsafe { std::ptr::copy_nonoverlapping(moved, back, page) };
        }
    }
}

/// The kernel makes room at `to` before it looks at all that may be wrong: a refusal can leave a hole there, in which another thread's
/// mapping may come to lie. Fills it again, and returns whether all of the range is mapped and accessible.
///
/// # Safety
/// The range is the caller's alone, and what it holds is not needed.
unsafe fn fill_hole(to: *mut u8, len: usize) -> bool {
    let map = |protection| {
        // SAFETY: maps only what is not mapped; the range is the caller's.
        unsafe { mmap_anonymous(to.cast(), len, protection, PRIVATE | MapFlags::FIXED_NOREPLACE) }
    };
    match map(ProtFlags::READ | ProtFlags::WRITE) {
        Ok(filled) if filled == to.cast() => true,
        // Linux before 4.17 and gVisor take the place for a wish: they map elsewhere what was not missing.
        Ok(elsewhere) => {
            // SAFETY: mapped above, and nobody knows of it.
            let _ = unsafe { munmap(elsewhere, len) };
            true
        }
        // Some of it is mapped, or there is no memory. (Where mincore(2) is refused, mremap(2) was as well.)
        Err(_) => {
            let has_hole = resident_bytes(to, len) == Err(Errno::NOMEM.into());
            if has_hole {
                // At least nobody else is to have the place.
                let _ = map(ProtFlags::empty());
            }
            !has_hole
        }
    }
}

/// How many bytes of the range are in memory, in whole pages; `None` where the system does not say.
///
/// # Safety
/// None is needed; the platforms share one signature.
pub(crate) unsafe fn count_resident(at: *const u8, len: usize) -> Option<usize> {
    if is_in_sandbox() {
        return None;
    }
    resident_bytes(at, len).ok()
}

/// As [`count_resident`].
///
/// # Errors
/// The system's: `ENOMEM` where some of the range is not mapped.
fn resident_bytes(at: *const u8, len: usize) -> Result<usize, os::Errno> {
    // 2 MiB at a time, with pages of 4 KiB: the stack may be small.
    let mut answers = [0u8; 512];
    let page = real_page_bytes();
    let len = covered(at, len)?;
    let mut pages = 0;
    for offset in (0..len).step_by(answers.len() * page) {
        let part = (len - offset).min(answers.len() * page);
        let start = at.wrapping_add(offset).cast_mut().cast();
        // SAFETY: a byte for each page of the part is written to `answers`, which has as many.
        keeping_errno(|| unsafe { libc::mincore(start, part, answers.as_mut_ptr()) })?;
        // Only the lowest bit has a meaning.
        pages += answers[..part.div_ceil(page)].iter().filter(|&&answer| answer & 1 == 1).count();
    }
    Ok(pages * page)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::os::seccomp::{self, Answer};
    use crate::os::{Mapping, page_bytes};

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
            os::discard(to.add(page), LEN - 2 * page).unwrap();
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
        let (_to, to) = mapped(LEN, 0);
        let page = page_bytes();
        // SAFETY: parts of two mappings of this test's.
        unsafe {
            // Two mappings instead of one.
            os::leave_out_of_dumps(from, LEN / 2).unwrap();
            match move_pages(from, to, LEN) {
                Ok(()) => assert!(all(from, LEN, 0) && all(to, LEN, 1)),
                Err(refused) => assert!(refused.is_target_whole && all(from, LEN, 1)),
            }
            from.write_bytes(3, LEN);
            to.write_bytes(0, LEN);
            for (from, to, len) in [(from.add(1), to, page), (from, to.add(1), page), (from, from, LEN), (from, to, 0)]
            {
                assert!(move_pages(from, to, len).unwrap_err().is_target_whole);
            }
            assert!(all(from, LEN, 3));
            to.write_bytes(5, LEN);
        }
    }

    /// How much a kernel has moved when it refuses to move more, and how much it has unmapped behind that where pages were to go.
    static MOVED_BYTES: AtomicUsize = AtomicUsize::new(0);
    static HOLE_BYTES: AtomicUsize = AtomicUsize::new(0);

    /// Answers for the kernel, which may have come to a second mapping.
    extern "C" fn refuse_with_a_hole(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: what the kernel passes to such a handler. The arguments of the call are in the registers of its convention: the
        // first and the fifth are the addresses, and the result replaces the first, or the number of the call. Both ranges are mapped.
        unsafe {
            let context = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
            #[cfg(target_arch = "x86_64")]
            let [from, to] = [libc::REG_RDI, libc::REG_R8].map(|register| context.gregs[register as usize]);
            #[cfg(target_arch = "aarch64")]
            let [from, to] = [context.regs[0], context.regs[4]];
            let [from, to] = [from, to].map(|at| std::ptr::with_exposed_provenance_mut::<u8>(at as usize));
            let (moved, hole) = (MOVED_BYTES.load(Ordering::Relaxed), HOLE_BYTES.load(Ordering::Relaxed));
            std::ptr::copy_nonoverlapping(from, to, moved);
            libc::madvise(from.cast(), moved, libc::MADV_DONTNEED);
            let _ = munmap(to.add(moved).cast(), hole);
            let error = -i64::from(if moved > 0 { libc::ENOMEM } else { libc::EFAULT });
            #[cfg(target_arch = "x86_64")]
            (context.gregs[libc::REG_RAX as usize] = error);
            #[cfg(target_arch = "aarch64")]
            (context.regs[0] = error as u64);
        }
    }

    /// Has a move refused in a forked child, with memory to be had or without. The kernel has moved `moved_bytes` by then, and leaves a
    /// hole behind them. Returns the child's status: 0 if `check` holds, and the pages hold what they held.
    fn refused_in_a_child(
        moved_bytes: usize,
        hole_bytes: usize,
        has_memory: bool,
        check: impl FnOnce(NotMoved, *mut u8) -> bool,
    ) -> libc::c_int {
        let (_from, from) = mapped(LEN, 1);
        let (_to, to) = mapped(LEN, 0);
        from.expose_provenance();
        to.expose_provenance();
        // SAFETY: the child takes no lock, and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            HOLE_BYTES.store(hole_bytes, Ordering::Relaxed);
            MOVED_BYTES.store(moved_bytes, Ordering::Relaxed);
            // SAFETY: a valid action; and two mappings that are the child's alone.
            let code = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = refuse_with_a_hole as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
                let limit = if has_memory { libc::RLIM_INFINITY } else { 1 };
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
                libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
                if !seccomp::refuse(&[libc::SYS_mremap], Answer::Trap) {
                    libc::_exit(9);
                }
                let refused = move_pages(from, to, LEN);
                i32::from(!refused.is_err_and(|refused| check(refused, to)) || !all(from, LEN, 1))
            };
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: a child of ours, and a place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    /// A run that was taken for whole would be handed out with a hole in it.
    #[test]
    fn the_hole_of_a_refused_move_is_filled_or_known() {
        let is_usable = |refused: NotMoved, to: *mut u8| {
            // SAFETY: the child's own mapping, which must be one again.
            unsafe { to.write_bytes(3, LEN) };
            refused.is_target_whole
        };
        let is_lost = |refused: NotMoved, _| !refused.is_target_whole;
        assert_eq!(refused_in_a_child(0, 0, true, is_usable), 0, "no hole");
        assert_eq!(refused_in_a_child(0, LEN, true, is_usable), 0, "all of it");
        // As where the pages lie in several mappings, and the first can't be moved.
        assert_eq!(refused_in_a_child(0, page_bytes(), true, is_lost), 0, "a page");
        assert_eq!(refused_in_a_child(0, LEN, false, is_lost), 0, "all of it, and no memory to fill it with");
    }

    /// Growth copies where a move is refused: it would copy zeroes.
    #[test]
    fn pages_that_were_moved_before_the_rest_was_refused_come_back() {
        let page = page_bytes();
        for (moved, hole) in [(page, 0), (LEN / 2, page), (LEN - page, page), (LEN, 0)] {
            let status = refused_in_a_child(moved, hole, true, |refused, _| refused.is_target_whole == (hole == 0));
            assert_eq!(status, 0, "{moved} bytes moved, {hole} bytes of a hole");
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
