//! Determines whether the library is in use, and the smallest request that it serves. The loader runs this code once, before `main`.
//!
//! Until it has run, glibc serves every request, including those of the loader and of other libraries' constructors.
#![allow(unsafe_code, reason = "is called by the loader, and asks it")]

use std::ffi::{CStr, OsStr, OsString, c_void};
use std::fs;
use std::mem::{transmute, zeroed};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arena::c_api;

use crate::{glibc, profile, report, watched};

/// The first request of at least this many bytes opens the arena, unless `ZK_ALLOC_MIN_BYTES` is set. The many small programs that inherit
/// the environment never make such a request, so the arena costs them nothing.
const OPENING_BYTES: usize = 64 << 10;
/// The arena also opens when the program has requested this many bytes in total, no matter how small its requests are.
const OPENING_SUM_BYTES: usize = 8 << 20;
/// The smallest request that the open arena serves, in bytes; 0 means that it serves all requests. Requests that are
/// left to glibc take additional memory in glibc's heap (docs/preload.md).
const SERVING_BYTES: usize = 0;

/// The smallest request that the arena serves, in bytes. While the library is not in use, the value is larger than any request.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The number of bytes that the program may still request from glibc before the arena opens; 0 if they are not counted. Threads that count
/// at the same time may miss some bytes.
static LEFT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Whether the program's requests arrive here. It is false if another `malloc` comes before this one, if the process was started with
/// `ZK_ALLOC=off`, and before the loader calls [`begin`]. The functions in `watched` read it.
pub(crate) static IS_IN_USE: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_in_use() -> bool {
    IS_IN_USE.load(Ordering::Relaxed)
}

/// Returns whether a request goes to the arena.
#[inline(always)]
pub(crate) fn is_for_arena(size: usize) -> bool {
    size >= MIN_BYTES.load(Ordering::Relaxed) || is_enough_in_all(size)
}

/// Counts a small request. Returns whether the program has now requested enough for the arena to open.
#[inline]
fn is_enough_in_all(size: usize) -> bool {
    let left = LEFT_BYTES.load(Ordering::Relaxed);
    if left == 0 {
        return false;
    }
    LEFT_BYTES.store(left.saturating_sub(size.max(1)), Ordering::Relaxed);
    left <= size.max(1)
        && MIN_BYTES.compare_exchange(OPENING_BYTES, SERVING_BYTES, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Returns the smallest request that the arena serves, in bytes.
pub(crate) fn min_bytes() -> usize {
    MIN_BYTES.load(Ordering::Relaxed)
}

// Runs after zk-alloc's own constructor (101), which copies the environment. SAFETY: the loader calls the functions in this
// section before `main`. `begin` ignores any arguments that the loader passes.
#[used]
#[unsafe(link_section = ".init_array.00104")]
static BEFORE_MAIN: extern "C" fn() = begin;

extern "C" fn begin() {
    c_api::postpone_asking_host();
    // Only one process of a tree warns about a value: the first one that has the library and was started with that value.
    let is_reported = |name: &str| {
        parent_has_library() && std::env::var_os(name).is_some_and(|value| parent_was_started_with(name, &value))
    };
    let value = |name: &str| std::env::var_os(name).map(OsString::into_vec);
    report::configure(value(report::VARIABLE).as_deref(), || is_reported(report::VARIABLE));
    c_api::warn_of_settings(is_reported);
    // Looks up glibc's functions even if the library is not in use, because calls of `malloc_usable_size` still arrive here.
    let knows_libc = glibc::look_up();
    if !glibc::is_there() {
        return;
    }
    if c_api::is_off() {
        return;
    }
    if !arrives_here() {
        return say_if_late();
    }
    if !knows_libc || !watched::look_up() {
        return c_api::print_line(format_args!("libzk_alloc.so does not know this C library, and does nothing"));
    }
    IS_IN_USE.store(true, Ordering::Relaxed);
    profile::configure(value(profile::VARIABLE).as_deref(), is_reported);
    let min_bytes = c_api::min_bytes_setting();
    MIN_BYTES.store(min_bytes.unwrap_or(OPENING_BYTES), Ordering::Relaxed);
    if min_bytes.is_none() {
        LEFT_BYTES.store(OPENING_SUM_BYTES, Ordering::Relaxed);
    }
    c_api::release_on_signal_if_set();
    c_api::start_background_thread_if_set();
}

/// Prepares glibc's heap, and sets the threshold of the open arena. Runs before the arena serves its first request. If `is_glibc_free` is
/// false, that request may have interrupted glibc while it was changing its heap.
#[cold]
pub(crate) fn arena_opened(is_glibc_free: bool) {
    if is_glibc_free {
        glibc::warm_up_malloc();
    }
    if c_api::min_bytes_setting().is_none() {
        MIN_BYTES.store(SERVING_BYTES, Ordering::Relaxed);
    }
}

/// Whether a probe request is in progress, and whether it arrived here. If it did, so do the program's requests.
static IS_PROBED: AtomicBool = AtomicBool::new(false);
static ARRIVED: AtomicBool = AtomicBool::new(false);

/// The size of the probe request, which another thread is unlikely to request at the same time.
const PROBE_BYTES: usize = 12_289;

/// The memory that the probe request returns. It is static, because a small program may never need glibc's heap. Only a wrapper of
/// `malloc` in the program may write to it, during the single probe.
static mut PROBE: [u128; PROBE_BYTES.div_ceil(16)] = [0; PROBE_BYTES.div_ceil(16)];

/// Returns the probe's memory if this request is the probe.
#[inline]
pub(crate) fn answer_to_probe(size: usize) -> Option<*mut c_void> {
    let is_probe = size == PROBE_BYTES && IS_PROBED.load(Ordering::Relaxed);
    is_probe.then(|| {
        ARRIVED.store(true, Ordering::Relaxed);
        (&raw mut PROBE).cast()
    })
}

/// Returns whether `malloc` is ours. It is not ours if the program brings its own, which comes before all libraries, or if `dlopen` loaded
/// this library late. Comparing addresses is not enough: the program's address of `malloc` may be a stub that leads to ours. Neither is a
/// call by name from this file, which the linker may have bound to ours.
fn arrives_here() -> bool {
    // SAFETY: the name is NUL-terminated.
    let malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    // SAFETY: a function of this name has this type in every process. A null pointer is `None`.
    let malloc = unsafe { transmute::<*mut c_void, Option<unsafe extern "C" fn(usize) -> *mut c_void>>(malloc) };
    let Some(malloc) = malloc else { return false };
    IS_PROBED.store(true, Ordering::Relaxed);
    MIN_BYTES.store(PROBE_BYTES, Ordering::Relaxed);
    // SAFETY: malloc(3) accepts any size.
    let at = unsafe { malloc(PROBE_BYTES) };
    MIN_BYTES.store(usize::MAX, Ordering::Relaxed);
    IS_PROBED.store(false, Ordering::Relaxed);
    if ARRIVED.load(Ordering::Relaxed) {
        return true;
    }
    // SAFETY: the name is NUL-terminated.
    let free = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"free".as_ptr()) };
    if !free.is_null() {
        // SAFETY: a function of this name has this type, and belongs to this `malloc`, no matter which library defines them.
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(free)(at) };
    }
    false
}

/// Returns the file of the `malloc` that comes first in the search order.
pub(crate) fn owner_of_malloc() -> Option<&'static CStr> {
    // SAFETY: the name is NUL-terminated.
    file_of(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) })
}

/// Returns the file of this library.
pub(crate) fn own_file() -> Option<&'static CStr> {
    file_of((&raw const IS_IN_USE).cast())
}

/// Returns the file that contains an address.
fn file_of(address: *const c_void) -> Option<&'static CStr> {
    // SAFETY: a `Dl_info` of zeroes is valid.
    let mut info = unsafe { zeroed::<libc::Dl_info>() };
    // SAFETY: `info` is valid for writes.
    unsafe { libc::dladdr(address, &raw mut info) };
    // SAFETY: the pointer is not null, and the loader's string stays valid as long as the file is loaded.
    (!info.dli_fname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_fname) })
}

/// Returns a file's name without its path.
fn file_name(file: &CStr) -> &[u8] {
    file.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// Prints a message if this library was loaded late, which is a mistake. Prints nothing for a program with its own `malloc`, because it may
/// be one of many that inherit the environment.
fn say_if_late() {
    let name = owner_of_malloc().map_or(&b""[..], file_name);
    if name.starts_with(b"libc.so") || name.starts_with(b"libc-") {
        c_api::print_line(format_args!(
            "libzk_alloc.so was loaded too late, and does nothing: the program already has the C library's malloc. \
             Start it with LD_PRELOAD"
        ));
    }
}

/// Returns whether the parent process also has the library; `false` if that cannot be determined.
pub(crate) fn parent_has_library() -> bool {
    let name = own_file().map_or(&b""[..], file_name);
    !name.is_empty() && of_parent("maps").windows(name.len()).any(|window| window == name)
}

/// Returns whether the parent process was started with this variable and value; `false` if that cannot be determined.
fn parent_was_started_with(name: &str, value: &OsStr) -> bool {
    let entry = [name.as_bytes(), b"=", value.as_bytes()].concat();
    of_parent("environ").split(|&byte| byte == 0).any(|known| known == entry)
}

/// Returns the contents of one of the parent's `/proc` files; empty if it can't be read.
fn of_parent(file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{}/{file}", parent_id())).unwrap_or_default()
}
