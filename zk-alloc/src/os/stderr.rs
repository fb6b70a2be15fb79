//! Standard error: the file that the process was started with, and no other.
//!
//! A program may close descriptor 2, or be started without one. The next file that it opens takes that number, and a message would
//! land in its data. So a function before `main` notes the file behind descriptor 2, and each message compares it. (In a library that
//! `dlopen` loads, the file is noted at that time.)
#![allow(unsafe_code, reason = "runs before main, and asks the kernel about a descriptor")]

use std::mem::MaybeUninit;

use super::imp::keeping_errno;
use crate::sync::WrittenOnce;

/// Which file a descriptor stands for: its device, its number there, and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: libc::dev_t,
    number: libc::ino_t,
    kind: libc::mode_t,
}

/// The file behind descriptor 2 when the process began; `None` where it was closed.
static AT_START: WrittenOnce<Option<File>> = WrittenOnce::new();

/// The file behind descriptor 2 now.
fn current() -> Option<File> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a place for the answer.
    keeping_errno(|| unsafe { libc::fstat(libc::STDERR_FILENO, stat.as_mut_ptr()) }).ok()?;
    // SAFETY: all zeroes are a valid value, and the call has filled it.
    let stat = unsafe { stat.assume_init() };
    Some(File { device: stat.st_dev, number: stat.st_ino, kind: stat.st_mode & libc::S_IFMT })
}

extern "C" fn note() {
    AT_START.write(current);
}

// Runs as early as the copy of the environment (`environment`), and for the same reason.
// SAFETY: the loader calls the C functions listed in this section before `main`. It may pass arguments, which they ignore.
#[used]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00101"))]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
static BEFORE_MAIN: extern "C" fn() = note;

/// Writes to standard error, if that still is the file that the process was started with. A write that fails is not repeated.
pub(crate) fn write_stderr(bytes: &[u8]) {
    if AT_START.get().is_none() {
        // A library's constructor may get here before ours has run. The call goes through the static, so that the linker keeps it.
        std::hint::black_box(&BEFORE_MAIN)();
    }
    let at_start = AT_START.get().copied().flatten();
    if at_start.is_some() && current() == at_start {
        // SAFETY: the buffer is valid for its length.
        let _ = keeping_errno(|| unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) } as _);
    }
}
