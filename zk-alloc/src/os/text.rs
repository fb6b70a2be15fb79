//! Messages for people, written without allocating.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// A line of text on the stack. Text that does not fit is cut off.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let taken = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + taken.len()].copy_from_slice(taken);
        self.len += taken.len();
        Ok(())
    }
}

/// Writes one line to standard error. Does not take the standard library's lock, which a fork may have left locked.
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    if super::is_in_sandbox() {
        return;
    }
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = writeln!(line, "zk-alloc: {message}");
    super::write_stderr(&line.bytes[..line.len]);
}

/// Writes one line to standard error, and ends the process as abort(3) does.
#[cfg(feature = "c-api")]
#[cold]
#[inline(never)]
pub(crate) fn abort(message: fmt::Arguments<'_>) -> ! {
    warn(message);
    std::process::abort()
}

/// A value whose `Debug` text is cut off where it becomes too long for a message.
pub(crate) struct Cut<'a, T: ?Sized>(pub(crate) &'a T);

/// The length of text that a message shows before it is cut off, in bytes.
const CUT_BYTES: usize = 80;

impl<T: fmt::Debug + ?Sized> fmt::Display for Cut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = Head { out: f, room: CUT_BYTES };
        // The only error is our own: no room is left.
        match write!(head, "{:?}", self.0) {
            Err(_) if head.room == 0 => f.write_str("..."),
            result => result,
        }
    }
}

/// Passes text on until the room is used up, then refuses.
struct Head<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    room: usize,
}

impl Write for Head<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The longest beginning that fits and ends between two characters. It may be empty.
        let end = (0..=self.room.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        let part = &text[..end];
        self.out.write_str(part)?;
        if part.len() < text.len() {
            self.room = 0;
            return Err(fmt::Error);
        }
        self.room -= part.len();
        Ok(())
    }
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
