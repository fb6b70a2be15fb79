//! The program of a command: where it is, and whether a library can be preloaded into it.

use anyhow::{Context, bail};
use nix::unistd::{Gid, Uid};
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, Object, ObjectSymbol};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The headers of a program end before this offset.
const HEADERS_BYTES: u64 = 1 << 16;
/// Interpreters to follow from a script; the kernel's limit is as low.
const MAX_INTERPRETERS: usize = 4;

/// Names of allocation functions that are linked into programs. Rust's mimalloc calls only `mi_malloc_aligned`.
const ALLOCATORS: &[&str] =
    &["malloc", "_rjem_malloc", "je_malloc", "mi_malloc", "mi_malloc_aligned", "tc_malloc", "rpmalloc"];
/// Part of function names in Rust programs that link our allocator.
const OURS_IN_RUST: &str = "zk_alloc";

/// A program on this machine.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) path: PathBuf,
    /// Why no library can be preloaded into it.
    pub(super) obstacle: Option<String>,
    /// A warning: the program links an allocator of its own, whose requests never reach a preloaded library.
    pub(super) remark: Option<String>,
}

impl Target {
    /// The program that the first word of a command names.
    pub(super) fn of(command: &[OsString]) -> anyhow::Result<Self> {
        let word = command.first().map_or(OsStr::new(""), |word| word.as_os_str());
        let path = located(word).with_context(|| {
            format!("no program {} to run: there is none, or it is not executable", Path::new(word).display())
        })?;
        let mut program = path.clone();
        for _ in 0..MAX_INTERPRETERS {
            if let Some(obstacle) = privileges(&program) {
                return Ok(Self { path, obstacle: Some(obstacle), remark: None });
            }
            let bytes = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
            match interpreter(&bytes) {
                Some(interpreter) => program = interpreter,
                None => {
                    let (remark, obstacle) = match linked(&program, &bytes) {
                        Ok(remark) => (remark, None),
                        Err(obstacle) => (None, Some(obstacle)),
                    };
                    return Ok(Self { path, obstacle, remark });
                }
            }
        }
        bail!("{} is a script of a script of a script", path.display())
    }

    /// The program's file name.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// Finds a program as `execvp` does.
fn located(word: &OsStr) -> Option<PathBuf> {
    let is_program =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if Path::new(word).components().count() > 1 {
        return Some(PathBuf::from(word)).filter(is_program);
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(word)).find(is_program)
}

/// The interpreter that a script names.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let interpreter = words.next()?;
    if interpreter.ends_with("/env") {
        let word = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return located(OsStr::new(word));
    }
    Some(interpreter.into())
}

/// Privileges that make the loader ignore `LD_PRELOAD` (ld.so(8), secure-execution mode).
fn privileges(program: &Path) -> Option<String> {
    let file = fs::metadata(program).ok()?;
    let gains_user = file.mode() & 0o4000 != 0 && file.uid() != Uid::current().as_raw();
    let gains_group = file.mode() & 0o2000 != 0 && file.gid() != Gid::current().as_raw();
    let kind = if gains_user { "setuid" } else { "setgid" };
    (gains_user || gains_group).then(|| format!("{} is {kind}: the loader passes over LD_PRELOAD", program.display()))
}

/// Whether a program has no loader; `None` if it is not a readable 64-bit ELF program.
pub(super) fn is_static(program: &Path) -> Option<bool> {
    // The headers come first in the file.
    let mut bytes = Vec::new();
    fs::File::open(program).ok()?.take(HEADERS_BYTES).read_to_end(&mut bytes).ok()?;
    let header = FileHeader64::<Endianness>::parse(&*bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, &*bytes).ok()?;
    Some(!headers.iter().any(|header| header.p_type(endian) == PT_INTERP))
}

/// Whether a library defines a `malloc` for programs to call.
pub(super) fn is_allocator(library: &Path) -> bool {
    let Ok(bytes) = fs::read(library) else { return false };
    let Ok(elf) = ElfFile64::<Endianness>::parse(&*bytes) else { return false };
    elf.dynamic_symbols().any(|symbol| symbol.is_definition() && symbol.name() == Ok("malloc"))
}

/// A note on how a program was linked, as far as its file shows. The error says why no library can be preloaded.
fn linked(program: &Path, bytes: &[u8]) -> Result<Option<String>, String> {
    let name = program.display();
    let elf = match FileKind::parse(bytes) {
        Ok(FileKind::Elf64) => ElfFile64::<Endianness>::parse(bytes).ok(),
        Ok(FileKind::Elf32) => {
            return Err(format!("{name} is a 32-bit program, and the libraries are for 64 bits"));
        }
        _ => None,
    };
    let elf = elf.ok_or_else(|| format!("{name} is no ELF program"))?;
    match loader(&elf, bytes) {
        None => Err(format!("{name} is static: there is no loader that could preload a library")),
        Some(loader) if loader.contains("musl") => {
            Err(format!("{name} is a program of musl: the libraries are for glibc"))
        }
        Some(_) => Ok(own_allocator(&elf).map(|function| {
            format!("{name} brings {function} itself: what it asks of that never reaches a preloaded library")
        })),
    }
}

/// The loader that a program requests.
fn loader(elf: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Option<String> {
    let endian = elf.endian();
    let mut headers = elf.elf_program_headers().iter();
    let path = headers.find_map(|header| header.interpreter(endian, bytes).ok().flatten())?;
    Some(String::from_utf8_lossy(path).into_owned())
}

/// An allocation function that the program brings itself, as far as its symbols show.
fn own_allocator<'data>(elf: &ElfFile64<'data, Endianness>) -> Option<&'data str> {
    let symbols = elf.dynamic_symbols().chain(elf.symbols());
    let mut defined = symbols.filter(|symbol| symbol.is_definition()).filter_map(|symbol| symbol.name().ok());
    defined.find_map(|name| match name {
        name if ALLOCATORS.contains(&name) => Some(name),
        name if name.contains(OURS_IN_RUST) => Some(OURS_IN_RUST),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_followed_to_what_runs_them() {
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#! /usr/bin/env -S X=1 sh\n"), located(OsStr::new("sh")));
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    /// This test is a dynamic program with malloc from the C library. A text file is not a program.
    #[test]
    fn a_program_is_told_from_what_is_none() {
        let own = env::current_exe().unwrap();
        assert_eq!(Target::of(&[own.clone().into()]).unwrap().obstacle, None);
        assert_eq!((is_static(&own), is_static(Path::new("/proc/self/maps"))), (Some(false), None));
        assert!(linked(Path::new("/text"), b"text").unwrap_err().contains("no ELF program"));
        assert!(Target::of(&["no-such-program-here".into()]).is_err());
    }
}
