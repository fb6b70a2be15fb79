//! Messages for people, written without allocating.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(unix))]
pub(crate) use super::imp::write_stderr;
#[cfg(unix)]
pub(crate) use stderr::write_stderr;

/// A line of text on the stack. Text that does not fit is cut off.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // A byte is left for the end of the line.
        let room = self.bytes.len() - 1 - self.len;
        let taken = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + taken.len()].copy_from_slice(taken);
        self.len += taken.len();
        Ok(())
    }
}

/// Writes one line to standard error. Does not take the standard library's lock, which a fork may have left locked.
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    write_line(message, write_stderr);
}

/// Hands one line of a message to `write`; none in a sandbox, which may end the process for the call.
pub(crate) fn write_line(message: fmt::Arguments<'_>, write: impl FnOnce(&[u8])) {
    if super::is_in_sandbox() {
        return;
    }
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "zk-alloc: {message}");
    line.bytes[line.len] = b'\n';
    write(&line.bytes[..=line.len]);
}

/// Writes one line to standard error, and ends the process as abort(3) does.
#[cfg(feature = "c-api")]
#[cold]
#[inline(never)]
pub(crate) fn abort(message: fmt::Arguments<'_>) -> ! {
    warn(message);
    std::process::abort()
}

// Whether the process is in a sandbox that kills it for an unexpected system call (seccomp).
//
// An allowlist for such a process has the calls of glibc's malloc: mmap, munmap, mremap, mprotect, brk, futex, and madvise with
// `MADV_DONTNEED`. Few have membarrier(2) or other advice, and a process cannot ask for the list. Once the process is said to be in a
// sandbox, the arena makes no other calls. It leaves the caches of other threads alone, faults memory in as threads touch it, gives no
// advice on huge pages, and writes no message.

static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Tells the arena that the process is in a sandbox, or about to enter one. Nothing undoes this.
pub(crate) fn enter_sandbox() {
    IS_ENTERED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_in_sandbox() -> bool {
    IS_ENTERED.load(Ordering::Relaxed)
}

#[cfg(unix)]
mod stderr {
    //! Standard error: the file that the process was started with, and no other.
    //!
    //! A program may close descriptor 2, or be started without one. The next file that it opens takes that number, and a message would
    //! land in its data. So a function before `main` notes the file behind descriptor 2, and each message compares it. (In a library that
    //! `dlopen` loads, the file is noted at that time.)
    #![allow(unsafe_code, reason = "runs before main, and asks the kernel about a descriptor")]

    use std::mem::MaybeUninit;

    use crate::os::imp::keeping_errno;
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
            let _ =
                keeping_errno(|| unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) } as _);
        }
    }
}
