//! `ZK_ALLOC_REPORT=1`: one line on standard error when the process exits, made without allocating.
#![allow(unsafe_code, reason = "is called by the loader, and reads the C library's variables")]

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write as _};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use arena::c_api;

use crate::start::{self, State};
use crate::{dlopen, glibc};

/// The process that reports, by its number: not the children that it forks, which have their parent's counters. 0 is none.
static REPORTS: AtomicU32 = AtomicU32::new(0);

/// Takes the setting as the process was started with it.
pub(crate) fn configure(value: Option<&[u8]>) {
    match value.map(<[u8]>::trim_ascii) {
        Some(b"1") => REPORTS.store(std::process::id(), Ordering::Relaxed),
        None | Some(b"" | b"0") => {}
        Some(_) => c_api::print_line(format_args!("ZK_ALLOC_REPORT is not 0 or 1; using the default, 0")),
    }
}

// SAFETY: the loader calls what is listed here, without arguments, when the process exits.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // The process may be in a sandbox, and its number is asked for by a system call.
    if REPORTS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let own = std::process::id();
    // Once: the program may unload a library that it loaded late.
    if REPORTS.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let name = program();
    if start::state() != State::InUse {
        if !glibc::is_there() {
            return c_api::print_line(format_args!("report of {name} ({own}): not in use, the C library is not glibc"));
        }
        let owner = start::owner_of_malloc().unwrap_or(c"another file");
        return c_api::print_line(format_args!(
            "report of {name} ({own}): not in use, malloc is that of {}",
            Text(owner.to_bytes())
        ));
    }
    let stats = arena::stats();
    // The many small programs of a build or a script: what started them says that the library was loaded.
    if stats.arena_allocations == 0 && parent_has_library() {
        return;
    }
    let huge_pages: &dyn fmt::Display = stats.huge_pages.as_ref().map_or(&"no arena", |chosen| chosen);
    let left_out = if dlopen::left_deepbind_out() { "; RTLD_DEEPBIND left out" } else { "" };
    c_api::print_line(format_args!(
        "report of {name} ({own}): served {} requests from {} bytes on with {}, at most {} alive; {} resident at exit; \
         {} for want of memory by glibc; the process: peak {}, {} minor faults, {} in huge pages ({huge_pages}){left_out}",
        stats.arena_allocations,
        start::min_bytes(),
        Mib(stats.arena_bytes),
        Mib(stats.peak_live_bytes as u64),
        Mib(stats.resident_bytes as u64),
        stats.overflow_allocations,
        Mib(peak_rss_bytes()),
        c_api::minor_faults(),
        Mib(huge_bytes()),
    ));
}

/// Whether the process that started this one has the library, too.
fn parent_has_library() -> bool {
    let Some(own) = start::own_file() else { return false };
    let name = own.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut path = Path::default();
    // SAFETY: asks for a number.
    let parent = unsafe { libc::getppid() };
    let written = write!(path, "/proc/{parent}/maps");
    let (Ok(()), Ok(path)) = (written, CStr::from_bytes_until_nul(&path.bytes)) else { return false };
    let mut found = false;
    // What a read ends with, the next begins with: a name may lie across.
    let mut buffer = [0u8; 4096];
    let mut kept = 0;
    each_read(path, |bytes| {
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

/// A path of a few letters, with a zero behind it.
#[derive(Default)]
struct Path {
    bytes: [u8; 32],
    len: usize,
}

impl fmt::Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let place = self.bytes[..31].get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Reads a file to its end.
fn each_read(path: &CStr, mut visit: impl FnMut(&[u8])) {
    let mut buffer = [0u8; 4096];
    // SAFETY: a name that ends with a zero; a buffer that is as long as is said; the descriptor is ours.
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

/// The program's name without its path.
fn program() -> Text<'static> {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: a variable of glibc's, which a program may set to a string of its own, or to null.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: as above.
    Text(if name.is_null() { b"?" } else { unsafe { CStr::from_ptr(name) }.to_bytes() })
}

/// The most memory that the process had at once, in bytes.
fn peak_rss_bytes() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a place for the answer, of which all zeroes are a valid value.
    let kib = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init().ru_maxrss
    };
    u64::try_from(kib).unwrap_or(0) << 10
}

/// Bytes of the process's own memory that are in huge pages now.
fn huge_bytes() -> u64 {
    let mut kib = 0;
    // It fits into one read.
    each_read(c"/proc/self/smaps_rollup", |bytes| {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        kib += line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0);
    });
    kib << 10
}

/// Bytes that may not be text.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| f.write_str(chunk.valid()))
    }
}

/// Bytes, shown in MiB.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}
