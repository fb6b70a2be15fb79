//! What the process finds when it starts: its environment variables, its standard error, and the host. Functions that run before `main`
//! record all three, because they may change later, or the process may lose the permission to query them. This module also writes messages
//! to standard error, and stores whether the process is in a sandbox.
//!
//! The variables are read without `std::env`, which guards the environment with a lock. Another thread may hold that lock while it sets a
//! variable, and in a forked child the lock may stay locked forever. The first allocation may be made while the lock is held, and must not
//! wait for it. So a function that runs before `main` copies the values, while the process has only one thread. All later reads use that
//! copy. Changes that the program makes later have no effect.
//!
//! Messages go to the file that was standard error when the process started, and to no other. A program may close descriptor 2, or be
//! started without it. The next file that it opens then gets that number, and a message would be written to that file. So before each
//! message, this module compares the file behind descriptor 2 with the recorded one.
//!
//! By the time of its first allocation, a program may no longer be allowed to query the host, because of a system-call filter (seccomp) or
//! a change of its root directory or user. So on Linux, a function that runs before `main` queries the host. It also makes, once each, the
//! system calls that the arena may make later ([`imp::rehearse`]). Later changes to the control group or to the allowed processors are not
//! noticed.
//!
//! (If this code is in a library loaded by `dlopen`, all this happens when the library is loaded.)
#![allow(
    unsafe_code,
    reason = "runs before main, reads the C library's list of variables, and asks about a descriptor"
)]

use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(not(unix))]
use super::imp::write_stderr;
use super::{HostHugePages, imp};
use crate::config::VARIABLES;
use crate::sync::WrittenOnce;
#[cfg(unix)]
use hook::write_stderr;

// The variables.

/// The prefix that the names of all our variables share.
#[cfg(unix)]
const PREFIX: &[u8] = b"ZK_ALLOC";

/// Variables that another build or another part of the project reads. They do not count as misspelt, although this build does not read
/// them. Names that end with `_` are prefixes that tests and benches use.
#[cfg(any(unix, test))]
const ELSEWHERE: &[&str] = &[
    "ZK_ALLOC_REPORT",
    "ZK_ALLOC_PROFILE",
    "ZK_ALLOC_PROFILE_BYTES",
    "ZK_ALLOC_PROFILE_SIGNAL",
    "ZK_ALLOC_TUNE",
    "ZK_ALLOC_TEST_",
    "ZK_ALLOC_SOAK_",
];

/// The maximum number of bytes of a value that are stored and shown in messages. No valid value is longer.
const HEAD_BYTES: usize = 80;

/// The value of a variable, or the beginning of a value that is too long to be usable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    bytes: [u8; HEAD_BYTES],
    len: u8,
    is_cut: bool,
}

impl Value {
    pub(crate) fn new(value: &[u8]) -> Self {
        let mut bytes = [0; HEAD_BYTES];
        let len = value.len().min(HEAD_BYTES);
        bytes[..len].copy_from_slice(&value[..len]);
        Self { bytes, len: len as u8, is_cut: len < value.len() }
    }

    /// Returns the value, if it is complete and valid UTF-8.
    pub(crate) fn text(&self) -> Option<&str> {
        if self.is_cut { None } else { std::str::from_utf8(self.head()).ok() }
    }

    fn head(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Formats the value like an `OsStr`, followed by `...` if it was truncated.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(unix)]
        let head: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(self.head());
        #[cfg(not(unix))]
        let head = std::str::from_utf8(self.head()).unwrap_or_default();
        write!(f, "{head:?}{}", if self.is_cut { "..." } else { "" })
    }
}

/// The part of the environment that this crate reads.
#[derive(Clone, Copy)]
struct Values {
    /// The value of each of [`VARIABLES`].
    known: [Option<Value>; VARIABLES.len()],
    /// The name of the first variable that begins with `ZK_ALLOC_` but is unknown.
    unknown: Option<Value>,
}

impl Values {
    /// Records an entry that begins with [`PREFIX`]. If a name occurs twice, the first entry counts, as for getenv(3).
    #[cfg(unix)]
    fn take(&mut self, entry: &[u8]) {
        let value_of = |name: &str| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        let found = VARIABLES.iter().zip(&mut self.known).find_map(|(name, value)| Some((value, value_of(name)?)));
        if let Some((value, bytes)) = found {
            value.get_or_insert_with(|| Value::new(bytes));
        } else if let Some(name) = unknown_name(entry) {
            self.unknown.get_or_insert_with(|| Value::new(name));
        }
    }
}

static SNAPSHOT: WrittenOnce<Values> = WrittenOnce::new();

fn snapshot() -> Option<&'static Values> {
    let taken_now = || {
        // Another library's constructor may call this before ours has run. (A signal handler that interrupts the copying finds no
        // variables: it can't wait for the code that it interrupted.)
        hook::begin();
        SNAPSHOT.get()
    };
    SNAPSHOT.get().or_else(taken_now)
}

/// Returns the value that a variable of [`VARIABLES`] had when the process started, if any. Allocates nothing, and never waits. On systems
/// other than Unix, nothing can run before `main`, so the first call reads the variables from the standard library.
pub(crate) fn variable(name: &str) -> Option<Value> {
    snapshot()?.known[VARIABLES.iter().position(|&known| known == name)?]
}

/// Returns the name of the first variable in the environment at start-up that begins with `ZK_ALLOC_` but that no part of the project
/// reads.
pub(crate) fn unknown_variable() -> Option<Value> {
    snapshot()?.unknown
}

/// Returns the name in an entry of the environment (`NAME=value`), if it is an [unknown variable](unknown_variable).
#[cfg(any(unix, test))]
fn unknown_name(entry: &[u8]) -> Option<&[u8]> {
    let name = entry.split(|&byte| byte == b'=').next().filter(|name| name.starts_with(b"ZK_ALLOC_"))?;
    let is_elsewhere = |other: &&str| match other.as_bytes() {
        family if family.ends_with(b"_") => name.starts_with(family),
        other => name == other,
    };
    let is_known = VARIABLES.iter().any(|known| known.as_bytes() == name) || ELSEWHERE.iter().any(is_elsewhere);
    if is_known { None } else { Some(name) }
}

/// Returns the variable whose name is most similar to `name`; `None` if none is similar enough.
pub(crate) fn nearest_variable(name: &str) -> Option<&'static str> {
    /// The maximum number of different letters.
    const MAX_DIFFERENT: usize = 4;
    let is_public = |known: &&&str| !known.starts_with("ZK_ALLOC_TEST_");
    let near = VARIABLES.iter().filter(is_public).map(|&known| (different(name.as_bytes(), known.as_bytes()), known));
    // In a short name, that many letters could be everything after the prefix.
    let max_different = MAX_DIFFERENT.min(name.len().saturating_sub("ZK_ALLOC_X".len()));
    near.min_by_key(|&(different, _)| different)
        .filter(|&(different, _)| different <= max_different)
        .map(|(_, known)| known)
}

/// Strips the prefix and the suffix that both texts share, and returns the length of the longer remainder.
fn different(one: &[u8], other: &[u8]) -> usize {
    let is_same = |(one, other): &(&u8, &u8)| one == other;
    let start = one.iter().zip(other).take_while(is_same).count();
    let end = one[start..].iter().rev().zip(other[start..].iter().rev()).take_while(is_same).count();
    one.len().max(other.len()) - start - end
}

// Messages for users, written without allocating.

/// Writes one line to standard error, in a single system call and without allocating. Does not take the standard library's lock, which a
/// fork may have left locked. Truncates messages longer than 500 bytes. Does nothing in a sandbox.
pub fn warn(message: fmt::Arguments<'_>) {
    write_line(message, write_stderr);
}

/// Formats a message as one line, and passes it to `write`. Does nothing in a sandbox, which may kill the process for the write.
pub fn write_line(message: fmt::Arguments<'_>, write: impl FnOnce(&[u8])) {
    if is_in_sandbox() {
        return;
    }
    let mut line = [b'\n'; 512];
    let most = line.len() - 1;
    // Text that does not fit is truncated. One byte is reserved for the newline.
    let mut left = &mut line[..most];
    let _ = write!(left, "zk-alloc: {message}");
    let len = most - left.len();
    write(&line[..=len]);
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
// The allowlist of such a process usually contains the calls of glibc's malloc: mmap, munmap, mremap, mprotect, brk, futex, and madvise
// with `MADV_DONTNEED`. Few allowlists contain membarrier(2) or other kinds of advice, and a process can't query its own list. Once the
// arena knows of the sandbox, it makes only the calls that glibc's malloc makes. It leaves the caches of other threads alone, does not
// prefault memory, gives no advice on huge pages, and writes no message.

static IS_SANDBOXED: AtomicBool = AtomicBool::new(false);

/// Tells the arena that the process is in a sandbox, or about to enter one. This can't be undone.
pub(crate) fn enter_sandbox() {
    IS_SANDBOXED.store(true, Ordering::Relaxed);
}

/// Returns whether the process is in a sandbox, or about to enter one.
#[must_use]
pub fn is_in_sandbox() -> bool {
    IS_SANDBOXED.load(Ordering::Relaxed)
}

// The host.

/// Facts about the host, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) limits: Limits,
    pub(crate) huge_pages: HostHugePages,
}

/// The threads and the memory that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The number of threads of this process that can run at once. At least 1.
    pub(crate) threads: usize,
    /// The memory that this process may use, in bytes.
    pub(crate) memory_bytes: usize,
    /// Whether the memory limit comes from a control group rather than from the machine.
    pub(crate) is_memory_grouped: bool,
}

static HOST: WrittenOnce<Host> = WrittenOnce::new();

#[cfg(feature = "c-api")]
static IS_POSTPONED: AtomicBool = AtomicBool::new(false);

/// Postpones reading the facts about the host until the arena opens, or the process enters a sandbox. By default they are read when the
/// process starts. Call this before `main`, from a constructor of priority 104.
#[cfg(feature = "c-api")]
pub fn postpone_asking_host() {
    IS_POSTPONED.store(true, Ordering::Relaxed);
}

/// The most mappings that this process may have: Linux's default until the limit is read.
static MAX_MAPPINGS: AtomicUsize = AtomicUsize::new(65_530);

/// Returns how many mappings this process may have: `vm.max_map_count`, or the kernel's default if that can't be read.
pub(crate) fn max_mappings() -> usize {
    MAX_MAPPINGS.load(Ordering::Relaxed)
}

/// Sets another limit on mappings, for a test.
#[cfg(all(test, not(loom), target_os = "linux"))]
pub(crate) fn set_max_mappings(mappings: usize) {
    MAX_MAPPINGS.store(mappings, Ordering::Relaxed);
}

fn ask() -> Host {
    imp::mappings_limit().inspect(|&mappings| MAX_MAPPINGS.store(mappings, Ordering::Relaxed));
    Host { limits: imp::limits(), huge_pages: imp::host_huge_pages() }
}

/// Returns the facts about the host. Allocates nothing.
pub(crate) fn host() -> Host {
    let take_now = || {
        #[cfg(target_os = "linux")]
        std::hint::black_box(&hook::ASKS_HOST);
        HOST.write(ask);
        HOST.get()
    };
    // A signal handler that interrupts the write finds no value, and reads the facts itself.
    HOST.get().or_else(take_now).copied().unwrap_or_else(ask)
}

#[cfg(unix)]
mod hook {
    use std::ffi::{CStr, c_char};

    #[cfg(all(target_os = "linux", feature = "c-api"))]
    use super::{IS_POSTPONED, Ordering};
    use super::{PREFIX, SNAPSHOT, VARIABLES, Values, WrittenOnce, imp};
    use crate::arena::fork;

    #[cfg(not(target_vendor = "apple"))]
    fn environ() -> *const *const c_char {
        unsafe extern "C" {
            // environ(7). The C library sets it before it runs constructors. (glibc also passes it to them as an argument; musl does not.)
            static environ: *const *const c_char;
        }
        // SAFETY: only the program changes this variable of the C library, and not while this reads it: see `copied`.
        unsafe { environ }
    }

    #[cfg(target_vendor = "apple")]
    fn environ() -> *const *const c_char {
        unsafe extern "C" {
            // environ(7): dynamic libraries can't refer to the variable itself.
            safe fn _NSGetEnviron() -> *mut *const *const c_char;
        }
        // SAFETY: the call returns the address of a variable of the C library. Only the program changes it, and not while this reads it:
        // see `copied`.
        unsafe { *_NSGetEnviron() }
    }

    /// Copies the values of [`VARIABLES`] from the C library's list of environment variables.
    fn copied() -> Values {
        let mut values = Values { known: [None; VARIABLES.len()], unknown: None };
        let mut at = environ();
        while !at.is_null() {
            // SAFETY: the list ends with a null pointer, where the loop stops. This runs when the process starts, so no other thread can
            // change the list.
            let entry = unsafe { *at };
            if entry.is_null() {
                break;
            }
            // SAFETY: each entry of the list is a C string, and the list does not change at this time.
            let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
            if entry.starts_with(PREFIX) {
                values.take(entry);
            }
            // SAFETY: this entry is not the null pointer that ends the list.
            at = unsafe { at.add(1) };
        }
        values
    }

    /// The identity of a file: its device, its inode number, and its type.
    type File = (libc::dev_t, libc::ino_t, libc::mode_t);

    /// The file behind descriptor 2 when the process started; `None` if the descriptor was closed.
    static AT_START: WrittenOnce<Option<File>> = WrittenOnce::new();

    /// Returns the file that is behind descriptor 2 now; `None` if the descriptor is closed.
    fn current() -> Option<File> {
        // SAFETY: all zeroes are a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writes.
        imp::keeping_errno(|| unsafe { libc::fstat(libc::STDERR_FILENO, &raw mut stat) }).ok()?;
        Some((stat.st_dev, stat.st_ino, stat.st_mode & libc::S_IFMT))
    }

    // Runs before those of the program's constructors that have no priority: they may start threads that change the environment. (101 is
    // the first priority that is not reserved for the C library.)
    // SAFETY: the loader calls the C functions listed in this section before `main`. It may pass arguments, which they ignore.
    #[used]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00101"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static BEFORE_MAIN: extern "C" fn() = before_main;

    extern "C" fn before_main() {
        begin();
        #[cfg(target_os = "linux")]
        crate::os::process::begin();
        fork::register();
    }

    /// Records the variables and standard error, if that was not done yet. The caller may run before [`BEFORE_MAIN`], as a library's
    /// constructor may.
    pub(super) fn begin() {
        // Refer to the static, so that the linker keeps it.
        std::hint::black_box(&BEFORE_MAIN);
        SNAPSHOT.write(copied);
        AT_START.write(current);
    }

    /// Writes to standard error, if it is still the file that the process was started with. Does not retry a write that fails.
    pub(super) fn write_stderr(bytes: &[u8]) {
        if AT_START.get().is_none() {
            begin();
        }
        let at_start = AT_START.get().copied().flatten();
        if at_start.is_some() && current() == at_start {
            let write = || {
                // SAFETY: the buffer is valid for its length.
                unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) as _ }
            };
            let _ = imp::keeping_errno(write);
        }
    }

    // SAFETY: as for `BEFORE_MAIN`.
    #[cfg(target_os = "linux")]
    #[used]
    #[unsafe(link_section = ".init_array.00105")]
    pub(super) static ASKS_HOST: extern "C" fn() = ask_host;

    #[cfg(target_os = "linux")]
    extern "C" fn ask_host() {
        #[cfg(feature = "c-api")]
        if IS_POSTPONED.load(Ordering::Relaxed) {
            return;
        }
        let host = super::host();
        // A filter that kills the process for one of these calls may already be in force. In that case, the operator has to set
        // `ZK_ALLOC_SANDBOX=1`.
        let is_told = super::variable("ZK_ALLOC_SANDBOX").is_some_and(|value| value.text() == Some("1"));
        if !is_told {
            imp::rehearse(host.huge_pages);
        }
    }
}

#[cfg(not(unix))]
mod hook {
    use super::{SNAPSHOT, VARIABLES, Value, Values};

    pub(super) fn begin() {
        let value = |name| std::env::var_os(name).map(|found| Value::new(found.as_encoded_bytes()));
        // Listing all variables would allocate.
        SNAPSHOT.write(|| Values { known: std::array::from_fn(|index| value(VARIABLES[index])), unknown: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelt variable must not be ignored silently. A variable that another part of the project reads is not misspelt.
    #[test]
    fn unknown_variable_is_found_and_the_nearest_name_suggested() {
        for (entry, unknown) in [
            (&b"ZK_ALLOC_MAX_BYTE=1"[..], Some(&b"ZK_ALLOC_MAX_BYTE"[..])),
            (b"ZK_ALLOC_MAX_BYTES=1", None),
            (b"ZK_ALLOCATOR=1", None),
            (b"ZK_ALLOC_REPORT=1", None),
            (b"ZK_ALLOC_PROFILE_SIGNAL=USR2", None),
            (b"ZK_ALLOC_TEST_HOST=1", None),
            (b"PATH=ZK_ALLOC_MAX", None),
        ] {
            assert_eq!(unknown_name(entry), unknown, "{}", String::from_utf8_lossy(entry));
        }
        for (name, nearest) in [
            ("ZK_ALLOC_MAX_BYTE", Some("ZK_ALLOC_MAX_BYTES")),
            ("ZK_ALLOC_RETAIN", Some("ZK_ALLOC_RETAIN_FOR")),
            ("ZK_ALLOC_TPH", Some("ZK_ALLOC_THP")),
            ("ZK_ALLOC_FOO", None),
            ("ZK_ALLOC_TEST_PAGE_BYTE", None),
        ] {
            assert_eq!(nearest_variable(name), nearest, "{name}");
        }
    }

    #[test]
    fn a_value_is_unusable_if_it_is_too_long_or_not_utf8() {
        let nines = "9".repeat(HEAD_BYTES + 1);
        assert_eq!(Value::new(&nines.as_bytes()[1..]).text(), Some(&nines[1..]));
        assert_eq!(Value::new(nines.as_bytes()).text(), None);
        assert_eq!(format!("{:?}", Value::new(nines.as_bytes())), format!("{:?}...", &nines[1..]));
        assert_eq!(Value::new(b"4\xFF").text(), None);
    }
}
