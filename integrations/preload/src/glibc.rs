//! glibc's own allocation functions, by the names that it exports for libraries such as this one. To look them up by `dlsym` would
//! call `malloc` before there is one.
//!
//! The names are weak: another C library's loader (musl's) takes LD_PRELOAD too, and would not start a program for which it does
//! not find them. There, the functions are those that come behind ours, and nothing else happens.
#![allow(unsafe_code, reason = "calls the C library")]

use std::alloc::{GlobalAlloc, Layout};
use std::arch::{asm, global_asm};
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that jumps to one of glibc's, or where there is no such, to `elsewhere`.
macro_rules! jumps {
    ($($own:ident -> $glibc:literal or $elsewhere:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        global_asm!(
            concat!(".weak ", $glibc),
            concat!(".globl ", stringify!($own)),
            concat!(".hidden ", stringify!($own)),
            concat!(".type ", stringify!($own), ", @function"),
            concat!(stringify!($own), ":"),
            concat!("mov rax, qword ptr [rip + ", $glibc, "@GOTPCREL]"),
            "test rax, rax",
            "jz {elsewhere}",
            "jmp rax",
            elsewhere = sym $elsewhere,
        );
        #[cfg(target_arch = "aarch64")]
        global_asm!(
            concat!(".weak ", $glibc),
            concat!(".globl ", stringify!($own)),
            concat!(".hidden ", stringify!($own)),
            concat!(".type ", stringify!($own), ", %function"),
            concat!(stringify!($own), ":"),
            concat!("adrp x16, :got:", $glibc),
            concat!("ldr x16, [x16, :got_lo12:", $glibc, "]"),
            "cbz x16, {elsewhere}",
            "br x16",
            elsewhere = sym $elsewhere,
        );
    )*};
}

jumps! {
    zk_alloc_glibc_malloc -> "__libc_malloc" or malloc_elsewhere;
    zk_alloc_glibc_free -> "__libc_free" or free_elsewhere;
    zk_alloc_glibc_calloc -> "__libc_calloc" or calloc_elsewhere;
    zk_alloc_glibc_realloc -> "__libc_realloc" or realloc_elsewhere;
    zk_alloc_glibc_memalign -> "__libc_memalign" or memalign_elsewhere;
    zk_alloc_glibc_valloc -> "__libc_valloc" or valloc_elsewhere;
    zk_alloc_glibc_pvalloc -> "__libc_pvalloc" or pvalloc_elsewhere;
}

unsafe extern "C" {
    #[link_name = "zk_alloc_glibc_malloc"]
    pub(crate) fn malloc(size: usize) -> *mut c_void;
    #[link_name = "zk_alloc_glibc_free"]
    pub(crate) fn free(at: *mut c_void);
    #[link_name = "zk_alloc_glibc_calloc"]
    pub(crate) fn calloc(count: usize, size: usize) -> *mut c_void;
    #[link_name = "zk_alloc_glibc_realloc"]
    pub(crate) fn realloc(at: *mut c_void, size: usize) -> *mut c_void;
    #[link_name = "zk_alloc_glibc_memalign"]
    pub(crate) fn memalign(align: usize, size: usize) -> *mut c_void;
    #[link_name = "zk_alloc_glibc_valloc"]
    pub(crate) fn valloc(size: usize) -> *mut c_void;
    #[link_name = "zk_alloc_glibc_pvalloc"]
    pub(crate) fn pvalloc(size: usize) -> *mut c_void;
}

/// The function of a name that comes behind ours. Loaders that come here allocate nothing for the answer.
fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

extern "C" fn malloc_elsewhere(size: usize) -> *mut c_void {
    let next = behind(c"malloc");
    // SAFETY: a function of this name has this type.
    unsafe { transmute::<*mut c_void, extern "C" fn(usize) -> *mut c_void>(next)(size) }
}

unsafe extern "C" fn free_elsewhere(at: *mut c_void) {
    let next = behind(c"free");
    // SAFETY: a function of this name has this type; the rest is the caller's.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(next)(at) }
}

extern "C" fn calloc_elsewhere(count: usize, size: usize) -> *mut c_void {
    let next = behind(c"calloc");
    // SAFETY: a function of this name has this type.
    unsafe { transmute::<*mut c_void, extern "C" fn(usize, usize) -> *mut c_void>(next)(count, size) }
}

unsafe extern "C" fn realloc_elsewhere(at: *mut c_void, size: usize) -> *mut c_void {
    let next = behind(c"realloc");
    // SAFETY: a function of this name has this type; the rest is the caller's.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>(next)(at, size) }
}

/// `aligned_alloc`, which is C's; `memalign` is not everywhere.
extern "C" fn memalign_elsewhere(align: usize, size: usize) -> *mut c_void {
    let next = behind(c"aligned_alloc");
    // SAFETY: a function of this name has this type.
    unsafe { transmute::<*mut c_void, extern "C" fn(usize, usize) -> *mut c_void>(next)(align, size) }
}

extern "C" fn valloc_elsewhere(size: usize) -> *mut c_void {
    memalign_elsewhere(page_bytes(), size)
}

extern "C" fn pvalloc_elsewhere(size: usize) -> *mut c_void {
    size.checked_next_multiple_of(page_bytes()).map_or(null_mut(), |whole| memalign_elsewhere(page_bytes(), whole))
}

/// The size of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: only reads a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Whether the C library is glibc.
pub(crate) fn is_there() -> bool {
    let address: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads an entry of the library's table of addresses.
    unsafe {
        asm!(
            ".weak __libc_malloc",
            "mov {}, qword ptr [rip + __libc_malloc@GOTPCREL]",
            out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!(
            ".weak __libc_malloc",
            "adrp {0}, :got:__libc_malloc",
            "ldr {0}, [{0}, :got_lo12:__libc_malloc]",
            out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    address != 0
}

// The unwinder that is linked in asks glibc's loader, which other loaders are not.
global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    "_dl_find_object:",
    #[cfg(target_arch = "x86_64")]
    "jmp {find}",
    #[cfg(target_arch = "aarch64")]
    "b {find}",
    find = sym find_object,
);

/// Called for the trace of a panic, before which the process ends.
unsafe extern "C" fn find_object(pc: *mut c_void, result: *mut c_void) -> c_int {
    let next = behind(c"_dl_find_object");
    if next.is_null() {
        return -1;
    }
    // SAFETY: a function of this name has this type; the rest is the caller's.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>(next)(pc, result) }
}

/// A function of glibc's that has no second name. Ours comes first in the order of the loader, so that it has to be looked up
/// behind ours, once, before the library is in use.
pub(crate) struct Next(AtomicPtr<c_void>);

pub(crate) static NEXT_USABLE_SIZE: Next = Next(AtomicPtr::new(null_mut()));
pub(crate) static NEXT_TRIM: Next = Next(AtomicPtr::new(null_mut()));

/// Looks up what has no second name. `false` where something is missing.
pub(crate) fn look_up() -> bool {
    [(&NEXT_USABLE_SIZE, c"malloc_usable_size"), (&NEXT_TRIM, c"malloc_trim")].into_iter().all(|(next, name)| {
        let found = behind(name);
        next.0.store(found, Ordering::Relaxed);
        !found.is_null()
    })
}

/// The length of glibc's memory, in bytes; 0 before [`look_up`], and for null.
///
/// # Safety
/// `at` is null, or memory of glibc's that was not freed.
pub(crate) unsafe fn usable_size(at: *mut c_void) -> usize {
    let next = NEXT_USABLE_SIZE.0.load(Ordering::Relaxed);
    if next.is_null() {
        return 0;
    }
    // SAFETY: `malloc_usable_size` of glibc's, which has this type.
    let next = unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(next) };
    // SAFETY: the caller's.
    unsafe { next(at) }
}

/// Gives what is free in glibc's heap back, all but `pad` bytes at its end; whether anything was.
pub(crate) fn trim(pad: usize) -> bool {
    let next = NEXT_TRIM.0.load(Ordering::Relaxed);
    if next.is_null() {
        return false;
    }
    // SAFETY: `malloc_trim` of glibc's, which has this type, and no demands.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(usize) -> c_int>(next)(pad) != 0 }
}

/// Readies glibc's heap for a life without large buffers: gives back the holes that they leave, and sees one of them.
#[cold]
pub(crate) fn take_over() {
    trim(0);
    // SAFETY: freed one line below.
    let at = std::hint::black_box(unsafe { malloc(arena::c_api::TEACHING_BYTES) });
    // SAFETY: allocated one line above, or null.
    unsafe { free(at) };
}

/// See the module's documentation.
pub(crate) struct Glibc;

// SAFETY: glibc's functions, whose memory lies on multiples of 16.
unsafe impl GlobalAlloc for Glibc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: glibc's functions take any length and any power of two.
        unsafe { memalign(layout.align().max(arena::c_api::MIN_ALIGN), layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: the caller's: it came from `alloc`.
        unsafe { free(ptr.cast()) };
    }
}
