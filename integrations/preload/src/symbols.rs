//! The symbol table of a loaded file, read in place.
//!
//! dlsym(3) finds the first function of a name, in any file. A symbol version does not help, because an unversioned
//! function matches every version. A handle from dlopen(3) would name the file, but both calls may allocate. The first
//! `malloc` needs these tables before it can return.
#![allow(unsafe_code, reason = "reads tables of the loader")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// Tags of `.dynamic` for which libc has no names, or other types.
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// The kind of a symbol that is a function.
const STT_FUNC: u8 = 2;
/// Set in the version of a symbol that only programs linked long ago use.
const VERSYM_HIDDEN: u16 = 0x8000;

/// `Elf64_Dyn`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// The load bias (address in memory minus address in the file), and the segments of the file.
type File = (usize, &'static [libc::Elf64_Phdr]);

/// Notes a file if it contains the address. Returns 1 to end the search.
///
/// # Safety
/// Called by `dl_iterate_phdr` only, with an address and a place for its file.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: upheld by the caller.
    let (info, (address, file)) = unsafe { (&*info, &mut *search.cast::<(usize, Option<File>)>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: a list of this length, which lasts as long as the file is loaded.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr as usize;
    let contains = |segment: &libc::Elf64_Phdr| {
        let begin = bias.wrapping_add(segment.p_vaddr as usize);
        segment.p_type == libc::PT_LOAD && address.wrapping_sub(begin) < segment.p_memsz as usize
    };
    *file = segments.iter().any(contains).then_some((bias, segments));
    c_int::from(file.is_some())
}

/// The tables of one file, which stay valid as long as it is loaded.
pub(crate) struct Symbols {
    /// The difference between addresses in memory and in the file.
    bias: usize,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    hashes: *const u32,
    /// Null if the file's symbols have no versions.
    versions: *const u16,
}

impl Symbols {
    /// The tables of the file that contains an address. `None` if no file does, or if that file has no such tables.
    ///
    /// dladdr(3) would find the file too, but it also searches all symbols of the file for the nearest one. That takes
    /// longer than the rest of this library's start.
    ///
    /// # Safety
    /// The file stays loaded while the result is in use.
    pub(crate) unsafe fn around(address: *const c_void) -> Option<Self> {
        let mut search = (address.addr(), None::<File>);
        // SAFETY: `look` gets this variable as its last argument.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        let (bias, segments) = search.1?;
        let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let mut entry = std::ptr::with_exposed_provenance::<Dynamic>(bias.wrapping_add(dynamic.p_vaddr as usize));
        let (mut symbols, mut names, mut hashes, mut versions) = (None, None, None, None);
        loop {
            // SAFETY: the list of a loaded file ends with `DT_NULL`, where the loop stops.
            let Dynamic { tag, value } = unsafe { *entry };
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
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        Some(Self { bias, symbols: symbols?, names: names?, hashes: hashes?, versions: versions.unwrap_or(null()) })
    }

    /// The function of this name that programs link with today; null if there is none.
    pub(crate) fn function(&self, name: &CStr) -> *mut c_void {
        let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: the loader searches the same table. It consists of four numbers, a filter of `filter_words` words of
        // 64 bits, the buckets, and a hash for each symbol from `first_listed` on. The lowest bit of a hash ends its
        // bucket.
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
    /// `index` lies within the table of symbols.
    unsafe fn is_function(&self, index: usize, name: &CStr) -> bool {
        // SAFETY: upheld by the caller; names are NUL-terminated.
        unsafe {
            let symbol = &*self.symbols.add(index);
            symbol.st_info & 0xf == STT_FUNC
                && symbol.st_shndx != 0
                && (self.versions.is_null() || *self.versions.add(index) & VERSYM_HIDDEN == 0)
                && CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name
        }
    }
}
