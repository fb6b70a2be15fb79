//! With `ZK_ALLOC_REPORT=1` the process prints one line on standard error when it exits. With `ZK_ALLOC_REPORT=/a/file` it appends the line
//! to that file. The report's own memory comes from glibc.
#![allow(unsafe_code, reason = "is called by the loader, and reads the C library's variables")]

use std::borrow::Cow;
use std::ffi::{CStr, OsStr, c_char};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use arena::c_api;

use crate::{glibc, start, watched};

/// The id of this process if it reports, otherwise 0. Forked children do not report, because they inherit their parent's counters.
static REPORTS: AtomicU32 = AtomicU32::new(0);

/// The path of the file for the report; empty for standard error. It is stored because programs may change their environment.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// The variable that turns the report on.
pub(crate) const VARIABLE: &str = "ZK_ALLOC_REPORT";

/// Stores the setting that the process was started with. `is_reported` returns whether the parent has already warned about the same value.
pub(crate) fn configure(value: Option<&[u8]>, is_reported: impl FnOnce() -> bool) {
    match value.map(<[u8]>::trim_ascii) {
        Some(b"1") => REPORTS.store(std::process::id(), Ordering::Relaxed),
        None | Some(b"" | b"0") => {}
        Some(path) if path[0] == b'/' => {
            let _ = FILE.set(OsStr::from_bytes(path).into());
            REPORTS.store(std::process::id(), Ordering::Relaxed);
        }
        Some(_) if is_reported() => {}
        Some(_) => c_api::print_line(format_args!(
            "{VARIABLE} is not 0, 1 or an absolute path of a file; using the default, 0"
        )),
    }
}

// SAFETY: the loader calls the functions in this section without arguments when the process exits.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// Writes one line of the report to its file, or to standard error if there is no file or it can't be written.
fn say(message: fmt::Arguments<'_>) {
    let Some(path) = FILE.get() else { return c_api::print_line(message) };
    c_api::write_line(message, |line| {
        let file = OpenOptions::new().append(true).create(true).mode(0o644).open(path);
        if file.and_then(|mut file| file.write_all(line)).is_err() {
            c_api::print_line(message);
        }
    });
}

extern "C" fn at_exit() {
    // Returns before reading the process id, because that takes a system call, and the process may be in a sandbox.
    if REPORTS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let own = std::process::id();
    // Fails in a forked child, which has another id, and after the first report.
    if REPORTS.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let name = program();
    if !start::is_in_use() {
        let who = format!("report of {name} ({own})");
        return say(format_args!("{who}: {}", why_not_in_use()));
    }
    let stats = arena::stats();
    // Skips the many small programs of a build or a script: their parent reports that the library was loaded.
    if stats.arena_allocations == 0 && start::parent_has_library() {
        return;
    }
    let huge_pages: &dyn fmt::Display = stats.huge_pages.as_ref().map_or(&"no arena", |chosen| chosen);
    let (parts, of) = (arena::resident_parts(), |bytes: usize| mib(bytes as u64));
    let left_out = if watched::left_deepbind_out() { "; RTLD_DEEPBIND left out" } else { "" };
    say(format_args!(
        "report of {name} ({own}): served {} requests from {} bytes on with {}, at most {} alive; {} held at exit \
         ({} live, {} in thread caches, {} free in slabs, {} in free page runs, {} prefaulted), {} of it in memory; \
         {} by glibc because memory was short; the process: peak {}, {} minor faults, {} in huge pages ({huge_pages}){left_out}",
        stats.arena_allocations,
        start::min_bytes(),
        mib(stats.arena_bytes),
        of(stats.peak_live_bytes),
        of(parts.resident_bytes()),
        of(parts.live_block_bytes + parts.live_run_bytes),
        of(parts.cached_bytes),
        of(parts.free_slab_bytes),
        of(parts.free_run_bytes),
        of(parts.prefaulted_bytes),
        of(parts.kernel_bytes.unwrap_or(parts.resident_bytes())),
        stats.overflow_allocations,
        mib(bytes_of("/proc/self/status", "VmHWM:")),
        c_api::minor_faults(),
        // The private memory that is currently in huge pages.
        mib(bytes_of("/proc/self/smaps_rollup", "AnonHugePages:")),
    ));
}

fn why_not_in_use() -> Cow<'static, str> {
    if !glibc::is_there() {
        return "not in use, the C library is not glibc".into();
    }
    if c_api::is_off() {
        return "not in use, ZK_ALLOC=off".into();
    }
    let owner = start::owner_of_malloc();
    if owner.is_some() && owner == start::own_file() {
        // The name `malloc` resolves to this library, but requests do not arrive here.
        return "not in use, a tool such as valgrind has replaced malloc with its own".into();
    }
    format!("not in use, malloc comes from {}", owner.unwrap_or(c"another file").to_string_lossy()).into()
}

/// Returns the program's name without its path.
fn program() -> Cow<'static, str> {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: glibc defines this variable. A program may set it to another string, or to null.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: if the variable is not null, it points to a NUL-terminated string.
    if name.is_null() { "?".into() } else { unsafe { CStr::from_ptr(name) }.to_string_lossy() }
}

/// Formats a number of bytes in MiB.
fn mib(bytes: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{:.1} MiB", bytes as f64 / f64::from(1 << 20)))
}

/// Returns the value, in bytes, of a line in one of the process's `/proc` files. The memory for the file's text comes from glibc.
fn bytes_of(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}
