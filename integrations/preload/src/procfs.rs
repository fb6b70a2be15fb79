//! Reads facts about this process and its parent from `/proc`, without allocating.
#![allow(unsafe_code, reason = "reads files by the C library's functions")]

use std::ffi::CStr;
use std::fmt::{self, Write};

use crate::start;

/// Whether the parent process has the library, too. `false` if that cannot be determined.
pub(crate) fn parent_has_library() -> bool {
    let Some(own) = start::own_file() else { return false };
    let name = own.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut found = false;
    // Each read continues the previous one, because a name may span both.
    let mut buffer = [0u8; 4096];
    let mut kept = 0;
    each_read_of_parent("maps", |bytes| {
        for part in bytes.chunks(buffer.len() / 2) {
            buffer[kept..kept + part.len()].copy_from_slice(part);
            let filled = kept + part.len();
            found |= !name.is_empty() && buffer[..filled].windows(name.len()).any(|window| window == name);
            kept = filled.min(name.len()).min(buffer.len() / 2);
            buffer.copy_within(filled - kept..filled, 0);
        }
    });
    found
}

/// Whether the parent process was started with this variable and value, an entry of environ(7). `false` if that cannot
/// be determined.
pub(crate) fn parent_was_started_with(entry: &[u8]) -> bool {
    let mut found = false;
    // The length of the prefix of `entry` that matches the bytes since the last zero; `None` once they differ.
    let mut same = Some(0);
    each_read_of_parent("environ", |bytes| {
        for &byte in bytes {
            if byte == 0 {
                found |= same == Some(entry.len());
                same = Some(0);
            } else {
                same = same.filter(|&len| entry.get(len) == Some(&byte)).map(|len| len + 1);
            }
        }
    });
    found
}

/// The bytes of the process's private memory that lie in huge pages now.
pub(crate) fn huge_bytes() -> u64 {
    let mut kib = 0;
    // The file fits into one read.
    each_read(c"/proc/self/smaps_rollup", |bytes| {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        kib += line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0);
    });
    kib << 10
}

/// Reads one of the parent's files to its end, if that is allowed.
fn each_read_of_parent(file: &str, visit: impl FnMut(&[u8])) {
    let mut path = Path::default();
    // SAFETY: only returns a number.
    let parent = unsafe { libc::getppid() };
    if write!(path, "/proc/{parent}/{file}").is_ok()
        && let Ok(path) = CStr::from_bytes_until_nul(&path.bytes)
    {
        each_read(path, visit);
    }
}

/// Reads a file to its end.
fn each_read(path: &CStr, mut visit: impl FnMut(&[u8])) {
    let mut buffer = [0u8; 4096];
    // SAFETY: a NUL-terminated name, a buffer of the given length, and a descriptor that this function owns.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return;
        }
        while let len @ 1.. = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) {
            visit(&buffer[..len.unsigned_abs()]);
        }
        libc::close(file);
    }
}

/// A short path, followed by a zero.
#[derive(Default)]
struct Path {
    bytes: [u8; 32],
    len: usize,
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let place = self.bytes[..31].get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
