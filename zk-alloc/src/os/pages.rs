//! The page size, and how many bytes a call on a range covers. The kernel rounds lengths up to whole pages, and refuses addresses
//! that are not on a page boundary.
//!
//! Machines with pages of 16 or 64 KiB (Apple's, many with Arm processors) are rare where this crate is tested. A mistake there
//! destroys live memory: a length that is not in whole pages reaches into a neighbour's memory. So a build with debug assertions can
//! imitate such a kernel. With `ZK_ALLOC_TEST_PAGE_BYTES=65536` in the environment, [`page_bytes`] returns that size. Every call of
//! the os layer on a range then covers the bytes that a kernel with such pages would cover. One effect can't be imitated: touching
//! one byte makes the whole large page resident.

use super::{Errno, imp};

/// The variable that makes pages larger, in builds with debug assertions.
pub(super) const TEST_PAGE_BYTES: &str = "ZK_ALLOC_TEST_PAGE_BYTES";

/// The page size, in bytes.
#[inline]
#[cfg(not(debug_assertions))]
pub(crate) fn page_bytes() -> usize {
    imp::real_page_bytes()
}

/// The bytes from `at` on that a call with length `len` covers: whole pages. Returns `len`, because the kernel rounds up by itself.
#[inline]
#[cfg(not(debug_assertions))]
#[cfg_attr(not(unix), allow(dead_code, reason = "no such calls there"))]
pub(super) fn covered(_at: *const u8, len: usize) -> Result<usize, Errno> {
    Ok(len)
}

/// The page size, in bytes: the system's, or a larger one that [`TEST_PAGE_BYTES`] asks for.
#[cfg(debug_assertions)]
pub(crate) fn page_bytes() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    match PAGE_BYTES.load(Ordering::Relaxed) {
        0 => {
            let value = super::variable(TEST_PAGE_BYTES);
            let asked = value.and_then(|value| value.text()?.parse().ok());
            let larger = asked.filter(|bytes| matches!(bytes, 16_384 | 65_536)).unwrap_or(0);
            let chosen = larger.max(imp::real_page_bytes());
            PAGE_BYTES.store(chosen, Ordering::Relaxed);
            chosen
        }
        known => known,
    }
}

/// The bytes from `at` on that a call with length `len` covers: whole pages.
///
/// # Errors
/// As the kernel's, if `at` is not on a page boundary.
#[cfg(debug_assertions)]
#[cfg_attr(not(unix), allow(dead_code, reason = "no such calls there"))]
pub(super) fn covered(at: *const u8, len: usize) -> Result<usize, Errno> {
    const EINVAL: i32 = 22;
    let page = page_bytes();
    if at.addr() % page != 0 {
        return Err(Errno(EINVAL));
    }
    len.checked_next_multiple_of(page).ok_or(Errno(EINVAL))
}

#[cfg(all(test, debug_assertions, target_os = "linux"))]
#[allow(unsafe_code, reason = "purges mapped memory, and looks at its neighbours")]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::os;

    /// Runs in a process with large pages. A length that is not in whole pages destroys the same bytes as under a kernel with such
    /// pages.
    #[test]
    fn with_large_pages_a_call_covers_all_of_each_page_and_begins_with_one() {
        let name = "os::pages::tests::with_large_pages_a_call_covers_all_of_each_page_and_begins_with_one";
        let Some(asked) = os::variable(TEST_PAGE_BYTES) else {
            for page_bytes in ["16384", "65536", "4096", "1", "garbage"] {
                let mut command = Command::new(std::env::current_exe().unwrap());
                let output = command.args([name, "--exact"]).env(TEST_PAGE_BYTES, page_bytes).output().unwrap();
                let stdout = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && stdout.contains("1 passed"), "{page_bytes}: {stdout}");
            }
            return;
        };
        let page = page_bytes();
        let larger = asked.text().unwrap().parse().ok().filter(|bytes| [16_384, 65_536].contains(bytes));
        assert_eq!(page, larger.unwrap_or(imp::real_page_bytes()));
        let mapping = os::map_zeroed(3 * page + 1).unwrap();
        let at = mapping.start().as_ptr();
        assert!(at.addr().is_multiple_of(page));
        let byte = |offset| {
            // SAFETY: the mapping made above is four pages long.
            unsafe { at.add(offset).read_volatile() }
        };
        // SAFETY: parts of the mapping made above, whose contents nobody needs.
        unsafe {
            at.write_bytes(1, 4 * page);
            os::discard(at.add(page), 1).unwrap();
            assert_eq!(os::discard(at.add(2 * page + 1), page), Err(Errno(22)));
            assert_eq!(os::purge_lazily(at.add(2 * page + 512), 512), Err(Errno(22)));
            assert_eq!(os::populate(at.add(page / 2 + 1), 1), Err(Errno(22)));
        }
        let expected = [1, 0, 0, 1, 1];
        assert_eq!([page - 1, page, 2 * page - 1, 2 * page, 4 * page - 1].map(byte), expected);
    }
}
