//! Finds glibc's own allocation functions in the symbol table of `libc.so.6`. Other binaries in the process may define functions with the
//! same names (`malloc_usable_size`, `__libc_malloc`) that know nothing about glibc's memory.
//!
//! All of these functions are looked up at once: by our constructor, or by the first request if one comes earlier. With another C library
//! (musl's loader supports LD_PRELOAD too), the look-up finds the next definitions in the search order (`RTLD_NEXT`), and our functions
//! only forward to those definitions.
#![allow(unsafe_code, reason = "calls the C library, and reads tables of the loader")]

use std::alloc::{GlobalAlloc, Layout};
use std::arch::{asm, global_asm};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::names::address;

/// Defines functions that call the C library's, each through a variable that contains the address. Before the look-up, the variable points
/// to a function that looks up the address and then makes the call.
macro_rules! looked_up {
    ($look_up:block $($(#[$doc:meta])* $place:ident: fn $own:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {$(
        static $place: AtomicPtr<c_void> = {
            unsafe extern "C" fn first($($argument: $kind),*) $(-> $answer)? {
                $look_up
                // SAFETY: the caller upholds this function's contract.
                unsafe { $own($($argument),*) }
            }
            AtomicPtr::new(first as *mut c_void)
        };

        $(#[$doc])*
        ///
        /// # Safety
        /// The caller must meet the requirements of the function's manual page. Any memory that is passed must come from the C library.
        #[inline(always)]
        pub(crate) unsafe fn $own($($argument: $kind),*) $(-> $answer)? {
            let found = $place.load(Ordering::Relaxed);
            // SAFETY: a function of this name has this type in every C library.
            let found = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) $(-> $answer)?>(found) };
            // SAFETY: the caller upholds this function's contract.
            unsafe { found($($argument),*) }
        }
    )*};
}
pub(crate) use looked_up;

looked_up! {
    { look_up(); }
    /// malloc(3).
    MALLOC: fn malloc(size: usize) -> *mut c_void;
    /// free(3).
    FREE: fn free(at: *mut c_void);
    /// calloc(3).
    CALLOC: fn calloc(count: usize, size: usize) -> *mut c_void;
    /// realloc(3).
    REALLOC: fn realloc(at: *mut c_void, size: usize) -> *mut c_void;
    /// memalign(3).
    MEMALIGN: fn memalign(align: usize, size: usize) -> *mut c_void;
    /// malloc_usable_size(3).
    USABLE_SIZE: fn usable_size(at: *mut c_void) -> usize;
    /// malloc_trim(3).
    TRIM: fn malloc_trim(pad: usize) -> c_int;
}

/// Looks up all of the functions above. Returns `false` if there is no glibc, or if glibc lacks one of them. In that case, the variables
/// point to the next functions after ours in the search order.
pub(crate) fn look_up() -> bool {
    // SAFETY: the C library is never unloaded.
    let glibc = unsafe { Symbols::around(address_of_release()) };
    // Each variable, the function's name in glibc, and the name of an equivalent function in other C libraries.
    let needed = [
        (&MALLOC, c"malloc", c"malloc"),
        (&FREE, c"free", c"free"),
        (&CALLOC, c"calloc", c"calloc"),
        (&REALLOC, c"realloc", c"realloc"),
        // Some C libraries lack `memalign`.
        (&MEMALIGN, c"memalign", c"aligned_alloc"),
        (&USABLE_SIZE, c"malloc_usable_size", c"malloc_usable_size"),
    ];
    let glibc = glibc.filter(|glibc| needed.iter().all(|(_, name, _)| !glibc.function(name).is_null()));
    for (place, name, elsewhere) in needed {
        let found = glibc.as_ref().map_or_else(|| behind(elsewhere), |glibc| glibc.function(name));
        place.store(found, Ordering::Relaxed);
    }
    // Every glibc has `malloc_trim`. Heaps of other C libraries are not trimmed.
    let trim = glibc.as_ref().map_or(trim_elsewhere as *mut c_void, |glibc| glibc.function(c"malloc_trim"));
    TRIM.store(trim, Ordering::Relaxed);
    glibc.is_some()
}

/// Returns the function of this name that comes after ours in the search order. In loaders other than glibc's, this look-up does not
/// allocate.
fn behind(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Looks up the function of this name that comes after ours in the search order, and stores its address in `place`. If there is none,
/// returns `false` and leaves `place` unchanged.
pub(crate) fn look_up_behind(place: &AtomicPtr<c_void>, name: &CStr) -> bool {
    let next = behind(name);
    if !next.is_null() {
        place.store(next, Ordering::Relaxed);
    }
    !next.is_null()
}

extern "C" fn trim_elsewhere(_pad: usize) -> c_int {
    0
}

/// Returns the size of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf(3) has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns whether the C library is glibc.
pub(crate) fn is_there() -> bool {
    !address_of_release().is_null()
}

/// Returns the address of `gnu_get_libc_release`, which only glibc has. The symbol is weak, because programs with other C libraries must
/// start without it.
fn address_of_release() -> *mut c_void {
    address!(
        ".weak gnu_get_libc_release\nmov {0}, qword ptr [rip + gnu_get_libc_release@GOTPCREL]",
        ".weak gnu_get_libc_release\nadrp {0}, :got:gnu_get_libc_release\nldr {0}, [{0}, :got_lo12:gnu_get_libc_release]"
    )
}

// The unwinder is linked into this library. It calls `_dl_find_object` of glibc's loader, which other loaders lack.
global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    "_dl_find_object:",
    #[cfg(target_arch = "x86_64")]
    "jmp qword ptr [rip + {find}]",
    #[cfg(target_arch = "aarch64")]
    "adrp x16, {find}\nldr x16, [x16, :lo12:{find}]\nbr x16",
    find = sym FIND_OBJECT,
);

looked_up! {
    { if !look_up_behind(&FIND_OBJECT, c"_dl_find_object") { return -1; } }
    /// glibc's own `_dl_find_object`. Without profiling, only the backtrace of a panic calls it, and the panic ends the process. Profiling
    /// walks the stack inside `malloc`, where dlsym(3) would wait for the loader's lock and change what dlerror(3) returns, so it calls
    /// [`prepare_walks`] first.
    FIND_OBJECT: fn find_object(pc: *mut c_void, result: *mut c_void) -> c_int;
}

/// Looks up the function that a stack walk needs. Returns `false` if the C library lacks it, as glibc before 2.35 does: the unwinder would
/// then end the process.
pub(crate) fn prepare_walks() -> bool {
    look_up_behind(&FIND_OBJECT, c"_dl_find_object")
}

/// Purges the free memory of glibc's heap, except `pad` bytes at its end. Returns whether anything was purged.
pub(crate) fn trim(pad: usize) -> bool {
    // SAFETY: malloc_trim(3) accepts any size.
    unsafe { malloc_trim(pad) != 0 }
}

/// Prepares glibc's heap for a process whose large buffers the arena serves: purges its free memory, then allocates and frees
/// one large buffer, so that glibc stops trimming the top of its heap.
#[cold]
pub(crate) fn warm_up_malloc() {
    trim(0);
    // SAFETY: malloc(3) accepts any size.
    let at = std::hint::black_box(unsafe { malloc(arena::c_api::malloc_warmup_bytes()) });
    // SAFETY: `at` was allocated above or is null, and is not used afterwards.
    unsafe { free(at) };
}

/// glibc's allocation functions as the allocator of this library's own Rust code.
pub(crate) struct Glibc;

// SAFETY: `memalign` returns unused memory with the layout's length and alignment, or null.
unsafe impl GlobalAlloc for Glibc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: glibc accepts any length, and any power of two as the alignment.
        unsafe { memalign(layout.align().max(arena::c_api::MIN_ALIGN), layout.size()) }.cast()
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: the caller passes a block that `alloc` returned.
        unsafe { free(ptr.cast()) };
    }
}

// This file reads glibc's symbol table itself, because dlsym(3) finds the first function with a name in any file. A symbol version does
// not help, because an unversioned function matches every version. A handle from dlopen(3) would select the file, but both dlopen and
// dlsym may allocate, and the first `malloc` must find glibc's functions before it can return.

/// Tags of `.dynamic`. The crate `libc` has no names for them, or gives them other types.
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// The symbol type of a function.
const STT_FUNC: u8 = 2;
/// The version bit of a symbol that exists only for old binaries.
const VERSYM_HIDDEN: u16 = 0x8000;

/// `Elf64_Dyn`: a tag, and its value.
type Dynamic = [u64; 2];

/// The load bias (address in memory minus address in the file), and the segments of the file.
type File = (usize, &'static [libc::Elf64_Phdr]);

/// Checks whether a file contains the address in `search`. If it does, stores the file in `search`, and returns 1 to end the search.
///
/// # Safety
/// Only `dl_iterate_phdr` may call this. `search` must point to a `(usize, Option<File>)`: the address, and the place for the file.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the caller upholds this function's contract.
    let (info, (address, file)) = unsafe { (&*info, &mut *search.cast::<(usize, Option<File>)>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the list has this length, and stays valid as long as the file is loaded.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let contains = |segment: &libc::Elf64_Phdr| {
        let begin = bias.wrapping_add(segment.p_vaddr as usize);
        segment.p_type == libc::PT_LOAD && address.wrapping_sub(begin) < segment.p_memsz as usize
    };
    *file = segments.iter().any(contains).then_some((bias, segments));
    c_int::from(file.is_some())
}

/// The symbol table of a loaded file, read in place. It stays valid as long as the file is loaded.
pub(crate) struct Symbols {
    /// The address in memory minus the address in the file.
    bias: usize,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    hashes: *const u32,
    /// The version of each symbol; null if the file's symbols have no versions.
    versions: *const u16,
}

impl Symbols {
    /// Finds the symbol table of the loaded file that contains an address. Returns `None` if no file contains the address, or if the file
    /// has no symbol table.
    ///
    /// dladdr(3) would find the file too, but it also searches all symbols of the file for the nearest one. That takes longer than all
    /// other start-up work of this library.
    ///
    /// # Safety
    /// The file must stay loaded while the result is in use.
    pub(crate) unsafe fn around(address: *const c_void) -> Option<Self> {
        let mut search = (address.addr(), None::<File>);
        // SAFETY: `search` has the type that `look` requires.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        let (bias, segments) = search.1?;
        let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let mut entry = std::ptr::with_exposed_provenance::<Dynamic>(bias.wrapping_add(dynamic.p_vaddr as usize));
        let (mut symbols, mut names, mut hashes, mut versions) = (None, None, None, None);
        loop {
            // SAFETY: the list of a loaded file ends with `DT_NULL`, where the loop stops.
            let [tag, value] = unsafe { *entry };
            // The loader has already added the bias, unless the list is read-only.
            let value = value as usize;
            let at = if value < bias { value.wrapping_add(bias) } else { value };
            match tag {
                DT_NULL => break,
                DT_SYMTAB => symbols = Some(std::ptr::with_exposed_provenance(at)),
                DT_STRTAB => names = Some(std::ptr::with_exposed_provenance(at)),
                DT_GNU_HASH => hashes = Some(std::ptr::with_exposed_provenance(at)),
                DT_VERSYM => versions = Some(std::ptr::with_exposed_provenance(at)),
                _ => {}
            }
            // SAFETY: the list continues, because this entry is not `DT_NULL`.
            entry = unsafe { entry.add(1) };
        }
        Some(Self { bias, symbols: symbols?, names: names?, hashes: hashes?, versions: versions.unwrap_or(null()) })
    }

    /// Returns the function that a program linked today would get for this name; null if there is none.
    pub(crate) fn function(&self, name: &CStr) -> *mut c_void {
        let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: the reads stay within the hash table, which the loader also searches. It consists of four numbers, a filter of
        // `filter_words` words of 64 bits, the buckets, and a hash for each symbol from `first_listed` on. A hash whose lowest bit is set
        // ends its bucket.
        unsafe {
            let [bucket_count, first_listed, filter_words, _] = *self.hashes.cast::<[u32; 4]>();
            let buckets = self.hashes.add(4 + 2 * filter_words as usize);
            let chains = buckets.add(bucket_count as usize);
            let mut index = *buckets.add((hash % bucket_count.max(1)) as usize);
            while index >= first_listed.max(1) {
                let listed = *chains.add((index - first_listed) as usize);
                if listed | 1 == hash | 1 && self.is_function(index as usize, name) {
                    let value = (*self.symbols.add(index as usize)).st_value as usize;
                    return std::ptr::with_exposed_provenance_mut(self.bias.wrapping_add(value));
                }
                if listed & 1 == 1 {
                    break;
                }
                index += 1;
            }
        }
        null_mut()
    }

    /// # Safety
    /// `index` must be within the symbol table.
    unsafe fn is_function(&self, index: usize, name: &CStr) -> bool {
        // SAFETY: the caller passes an index within the table; names are NUL-terminated.
        unsafe {
            let symbol = &*self.symbols.add(index);
            symbol.st_info & 0xf == STT_FUNC
                && symbol.st_shndx != 0
                && (self.versions.is_null() || *self.versions.add(index) & VERSYM_HIDDEN == 0)
                && CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name
        }
    }
}
