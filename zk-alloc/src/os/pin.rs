//! Keeps the shared object that contains this code (a plugin, for example) mapped until the process ends.
//!
//! dlclose(3) would unmap it, with the arena's tables and our code. But each thread that allocated here calls our code when it ends
//! (the destructor of its key), and nothing can cancel that call. The host may also still use memory of the arena. So the object asks
//! the loader, when it is loaded, never to unload it (`RTLD_NODELETE`). dlclose(3) then succeeds, and another dlopen(3) finds the
//! object as it was left.
//!
//! This is for glibc only. musl's dlclose(3) unloads nothing, and a static program has no such objects. (libzk_alloc.so has a flag in
//! its file for the same effect. It may be loaded by another C library, which has no `dladdr1`.)
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

// SAFETY: the loader calls the C functions listed in this section before `main`, or before `dlopen` returns. It may pass arguments,
// which they ignore.
#[used]
#[unsafe(link_section = ".init_array.00103")]
static WHEN_LOADED: extern "C" fn() = pin;

/// Refers to [`WHEN_LOADED`], so that the linker keeps it.
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
    // SAFETY: written by a call that succeeded. The loader's entry for this object begins with these fields, and lasts as long as the
    // object.
    let name = unsafe { (*map.cast::<LinkMap>()).name };
    // SAFETY: a string of the loader. Only the program itself has no name, or an empty one.
    if name.is_null() || unsafe { *name } == 0 {
        return;
    }
    // SAFETY: the name of a loaded object, so that the call only sets the flag. The handle is closed once.
    unsafe {
        let handle = libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        if !handle.is_null() {
            libc::dlclose(handle);
        }
    }
}
