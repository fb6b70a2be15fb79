//! Keeps the shared object that this code lies in, a plugin's say, mapped for the life of the process.
//!
//! dlclose(3) would unmap it, with the arena's tables and our code. But threads that allocated here call that code when they end (the
//! destructor of their key), and no thread can be made to forget it. The same holds for memory of the arena that the host still
//! holds. So the object asks the loader, when it is loaded, never to unload it (`RTLD_NODELETE`). dlclose(3) then succeeds, and
//! another dlopen(3) finds the object as it was left.
//!
//! Only glibc is asked. musl's dlclose(3) unloads nothing, and a static program has no such objects. (In libzk_alloc.so, a flag of the
//! file says the same; its loader may be another C library's, which has no `dladdr1`.)
#![allow(unsafe_code, reason = "asks the loader")]

use std::ffi::{c_char, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// The beginning of glibc's `struct link_map` (link.h).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
}

/// `RTLD_DL_LINKMAP` (dlfcn.h).
const LINK_MAP: libc::c_int = 2;

// SAFETY: the loader calls what is listed here as functions of C's, before `main`, or before `dlopen` returns. It may pass arguments,
// which such a function does not look at.
#[used]
#[unsafe(link_section = ".init_array.00103")]
static WHEN_LOADED: extern "C" fn() = pin;

/// A linker keeps what the code refers to: this has it keep the call above.
pub(crate) fn refer() {
    black_box(&WHEN_LOADED);
}

extern "C" fn pin() {
    let (mut info, mut map) = (MaybeUninit::<libc::Dl_info>::uninit(), null_mut::<c_void>());
    let own = (&raw const WHEN_LOADED).cast();
    // SAFETY: two places for the answers.
    if unsafe { libc::dladdr1(own, info.as_mut_ptr(), &raw mut map, LINK_MAP) } == 0 || map.is_null() {
        return;
    }
    // SAFETY: written by a call that succeeded. The loader's entry of this object begins so, and lasts as long as the object.
    let name = unsafe { (*map.cast::<LinkMap>()).name };
    // SAFETY: a string of the loader's. Only the program itself has none, or an empty one.
    if name.is_null() || unsafe { *name } == 0 {
        return;
    }
    // SAFETY: the name of an object that is loaded, so that nothing else happens; the handle is closed once.
    unsafe {
        let handle = libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        if !handle.is_null() {
            libc::dlclose(handle);
        }
    }
}
