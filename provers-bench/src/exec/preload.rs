//! The libraries that `exec` preloads: their files, packages and settings. Also finds the command's program, and checks whether a library
//! can be preloaded into it.

use crate::arms::{self, ARMS, Library, OURS, Preload};
use crate::measure::binaries;
use crate::plan::{self, UsageError};
use crate::results::Outcome;
use anyhow::{Context, bail};
use nix::unistd::{Gid, Uid};
use object::elf::FileHeader64;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, FileKind, Object, ObjectSymbol};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns the library and settings with which `exec` starts the arm `name`.
fn preload(name: &str) -> Option<Preload> {
    ARMS.iter().find(|arm| arm.name == name)?.preload
}

/// The environment variable that tells the loader which libraries to preload.
pub(super) const PRELOAD: &str = "LD_PRELOAD";

/// The name that selects all allocators on the command line.
const ALL: &str = "all";

/// File name of our library.
const OUR_FILE: &str = "libzk_alloc.so";
/// The package that builds our library.
const OUR_PACKAGE: &str = "zk-alloc-preload";

/// An arm of `exec`: an allocator and its library on this machine.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) label: String,
    /// The allocator's name. If the command line repeats it, the second arm's label is this name with a number.
    pub(super) arm: String,
    /// The library's path, with symbolic links resolved; `None` for the C library's own allocator.
    pub(super) library: Option<PathBuf>,
    /// Other libraries that every run preloads after the arm's own.
    pub(super) preloaded: String,
    /// Environment variables of the arm, without `LD_PRELOAD`.
    pub(super) environment: Vec<(String, String)>,
    /// Name and version of the library's package, if a package manager knows it.
    pub(super) package: Option<(String, String)>,
    /// Why the arm cannot take part, if it cannot.
    pub(super) trouble: Option<Outcome>,
}

/// A library that was named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// An allocator in the table of arms, or a new one.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Parses `NAME=PATH`, or the path of our own library.
pub(crate) fn named(given: &str) -> Result<Named, String> {
    let (name, path) = given.split_once('=').unwrap_or((OURS, given));
    let path = PathBuf::from(path);
    if !path.is_file() {
        return Err(format!("there is no file {}", path.display()));
    }
    if name.is_empty() || name.contains('/') {
        return Err("expected a library's path, or NAME=PATH for an allocator other than zk-alloc".into());
    }
    Ok(Named { name: name.into(), path })
}

/// Returns one name for each arm that `given` selects; a name may occur twice. The names in `libraries` are valid too.
pub(super) fn names(given: &[String], libraries: &[Named]) -> Result<Vec<String>, UsageError> {
    let mut known: Vec<_> = ARMS.iter().filter(|arm| arm.preload.is_some()).map(|arm| arm.name.to_owned()).collect();
    let added: Vec<_> = libraries.iter().map(|named| named.name.clone()).filter(|name| !known.contains(name)).collect();
    known.extend(added);
    let named = |given: &String| match given {
        all if all == ALL => Ok(known.clone()),
        name if known.contains(name) => Ok(vec![name.clone()]),
        _ => Err(UsageError::unknown("allocator", given, [ALL].into_iter().chain(known.iter().map(String::as_str)))),
    };
    Ok(given.iter().map(named).collect::<Result<Vec<_>, _>>()?.concat())
}

/// Finds the library and the settings for each of `names`. `preloaded` lists the other libraries of every run.
pub(super) fn candidates(names: &[String], libraries: &[Named], preloaded: &str) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    for (name, label) in names.iter().zip(plan::labels(names.iter().map(String::as_str))) {
        // Reuses an earlier candidate, so our library is built only once.
        let same = candidates.iter().find(|candidate| candidate.arm == *name).cloned();
        let candidate = same.unwrap_or_else(|| candidate(name, libraries));
        candidates.push(Candidate { label, preloaded: preloaded.into(), ..candidate });
    }
    candidates
}

/// Returns the path of our library: the one that cargo builds, or else the installed one.
fn ours() -> Result<PathBuf, String> {
    binaries::library(OUR_PACKAGE, OUR_FILE).or_else(|error| {
        let installed = found(&[OUR_FILE]);
        installed.ok_or_else(|| format!("{error:#}, and --library PATH names one that lies elsewhere"))
    })
}

/// Describes the arm `name`, without other preloaded libraries.
pub(super) fn candidate(name: &str, libraries: &[Named]) -> Candidate {
    let preload = preload(name);
    let library = preload.map(|preload| preload.library);
    let serves = |named: &&Named| {
        let of = self::preload(&named.name);
        named.name == name || of.is_some_and(|of| of.library != Library::None && Some(of.library) == library)
    };
    let found = match (libraries.iter().find(serves), library) {
        (Some(named), _) => Ok(Some(named.path.clone())),
        (None, Some(Library::Packaged { files, debian, fedora })) => found(files).map(Some).ok_or_else(|| {
            format!("not installed: apt-get install {debian} (Debian, Ubuntu), dnf install {fedora} (Fedora)")
        }),
        (None, Some(Library::Ours)) => ours().map(Some),
        (None, _) => Ok(None),
    };
    let environment = preload.map_or_else(Vec::new, |preload| arms::owned(preload.environment));
    let (library, trouble) = match found {
        Ok(path) => (path.map(|path| path.canonicalize().unwrap_or(path)), None),
        Err(reason) => (None, Some(Outcome::LeftOut { reason })),
    };
    let package = library.as_deref().and_then(package_of);
    Candidate { label: name.into(), arm: name.into(), library, preloaded: String::new(), environment, package, trouble }
}

/// Returns the first of `files` that exists in one of the loader's folders.
pub(super) fn found(files: &[&str]) -> Option<PathBuf> {
    let folders = ["/usr/local/lib", "/usr/lib", "/lib", "/usr/lib64", "/lib64"].map(PathBuf::from);
    // Debian and its derivatives have a folder for each architecture.
    let triplet = format!("{}-linux-gnu", env::consts::ARCH);
    let folders: Vec<_> = folders.iter().flat_map(|folder| [folder.join(&triplet), folder.clone()]).collect();
    files.iter().find_map(|file| folders.iter().map(|folder| folder.join(file)).find(|path| path.is_file()))
}

/// Returns the name and version of the package that installed a file.
fn package_of(file: &Path) -> Option<(String, String)> {
    let output_of = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let file = file.to_str()?;
    if let Some(line) = output_of("dpkg-query", &["--search", file]) {
        let package = line.split([':', ',']).next()?.to_owned();
        let version = output_of("dpkg-query", &["--show", "--showformat", "${Version}\n", &package])?;
        return Some((package, version.lines().next()?.to_owned()));
    }
    let line = output_of("rpm", &["--query", "--file", "--queryformat", "%{NAME} %{VERSION}", file])?;
    let (package, version) = line.split_once(' ')?;
    Some((package.into(), version.into()))
}

impl Candidate {
    /// Returns the environment variables that the command gets in addition to the driver's own.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let preload = self.library.as_ref().map(|library| {
            let library = library.display().to_string();
            let others = if self.preloaded.is_empty() { String::new() } else { format!(":{}", self.preloaded) };
            (PRELOAD.to_owned(), library + &others)
        });
        preload.into_iter().chain(self.environment.clone()).collect()
    }

    /// Returns the library's file name. For a packaged library, this is the name that programs load, which may be a link to the file.
    pub(super) fn file(&self) -> Option<String> {
        let path = self.library.as_ref()?;
        if let Some(Library::Packaged { files, .. }) = preload(&self.arm).map(|preload| preload.library) {
            let is_it = |file: &&&str| path.with_file_name(file).canonicalize().is_ok_and(|found| found == *path);
            if let Some(file) = files.iter().find(is_it) {
                return Some((*file).to_owned());
            }
        }
        Some(path.file_name()?.to_string_lossy().into_owned())
    }
}

/// Returns the command line that runs the command under an allocator, quoted for a shell.
pub(super) fn environment(candidate: &Candidate, command: &[OsString]) -> String {
    let variables = candidate.variables();
    let assigned = variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    assigned.chain([command_line(command)]).collect::<Vec<_>>().join(" ")
}

/// Returns Dockerfile lines that install an allocator. They must come after all commands that need the C library's own allocator.
pub(super) fn dockerfile(candidate: &Candidate) -> Vec<String> {
    let mut lines = Vec::new();
    let variables = candidate.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    // No distribution has our package, so the library's file is copied.
    let package = candidate.package.as_ref().filter(|(package, _)| package != OUR_PACKAGE);
    let preload = candidate.file().map(|file| {
        let (line, library) = match package {
            Some((package, _)) if Path::new("/etc/debian_version").is_file() => (
                format!(
                    "RUN apt-get update && apt-get install -y --no-install-recommends {package} && rm -rf /var/lib/apt/lists/*"
                ),
                file,
            ),
            Some((package, _)) => (format!("RUN dnf install -y {package} && dnf clean all"), file),
            None => (format!("COPY {file} /usr/local/lib/{file}"), format!("/usr/local/lib/{file}")),
        };
        lines.push(line);
        format!("LD_PRELOAD={library}")
    });
    let words: Vec<_> = preload.into_iter().chain(variables).collect();
    lines.push(format!("ENV {}", words.join(" ")));
    lines
}

/// Quotes a command for a shell.
pub(super) fn command_line(command: &[OsString]) -> String {
    command.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Maximum number of nested interpreters to follow from a script. The kernel has a similar limit.
const MAX_INTERPRETERS: usize = 4;

/// Names of functions whose symbols show that a program links its own allocator. Rust's mimalloc calls only `mi_malloc_aligned`.
const ALLOCATORS: &[&str] =
    &["malloc", "_rjem_malloc", "je_malloc", "mi_malloc", "mi_malloc_aligned", "tc_malloc", "rpmalloc"];
/// Substring of function names in Rust programs that link our allocator.
const OURS_IN_RUST: &str = "zk_alloc";

/// A program on this machine.
#[derive(Debug)]
pub(super) struct Target {
    /// The program's file name.
    pub(super) name: String,
    /// A warning if the program links its own allocator, because requests to that allocator never reach a preloaded library. The error
    /// states why no library can be preloaded into the program.
    pub(super) remark: Result<Option<String>, String>,
}

impl Target {
    /// Finds and inspects the program that the first word of a command names.
    pub(super) fn of(command: &[OsString]) -> anyhow::Result<Self> {
        let word = command.first().map_or(OsStr::new(""), |word| word.as_os_str());
        let path = located(word).with_context(|| {
            format!("no program {} to run: there is none, or it is not executable", Path::new(word).display())
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut program = path.clone();
        for _ in 0..MAX_INTERPRETERS {
            if let Some(obstacle) = privileges(&program) {
                return Ok(Self { name, remark: Err(obstacle) });
            }
            let bytes = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
            let Some(interpreter) = interpreter(&bytes) else {
                return Ok(Self { name, remark: linked(&program, &bytes) });
            };
            program = interpreter;
        }
        bail!("{} is a script with too many interpreters that are scripts themselves", path.display())
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

/// Returns the interpreter that a script names.
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

/// Returns an error text if the program is setuid or setgid, because the loader then ignores `LD_PRELOAD` (ld.so(8), secure-execution
/// mode).
fn privileges(program: &Path) -> Option<String> {
    let file = fs::metadata(program).ok()?;
    let gains_user = file.mode() & 0o4000 != 0 && file.uid() != Uid::current().as_raw();
    let gains_group = file.mode() & 0o2000 != 0 && file.gid() != Gid::current().as_raw();
    let kind = if gains_user { "setuid" } else { "setgid" };
    (gains_user || gains_group).then(|| format!("{} is {kind}: the loader ignores LD_PRELOAD", program.display()))
}

/// Returns whether a program is static, so that no loader can preload a library into it; `None` if it is not a readable 64-bit ELF program.
pub(super) fn is_static(program: &Path) -> Option<bool> {
    // Reads only the headers.
    Some(loader(&ReadCache::new(fs::File::open(program).ok()?)).ok()?.is_none())
}

/// Returns the loader that a 64-bit ELF program requests.
fn loader<'data>(program: impl ReadRef<'data>) -> object::Result<Option<&'data [u8]>> {
    let header = FileHeader64::<Endianness>::parse(program)?;
    let endian = header.endian()?;
    let mut headers = header.program_headers(endian, program)?.iter();
    Ok(headers.find_map(|header| header.interpreter(endian, program).ok().flatten()))
}

/// Returns whether a library defines a `malloc` for programs to call.
pub(super) fn is_allocator(library: &Path) -> bool {
    let Ok(bytes) = fs::read(library) else { return false };
    let Ok(elf) = ElfFile64::<Endianness>::parse(&*bytes) else { return false };
    elf.dynamic_symbols().any(|symbol| symbol.is_definition() && symbol.name() == Ok("malloc"))
}

/// Returns a warning if a program links its own allocator, as far as its file shows. The error states why no library can be preloaded.
fn linked(program: &Path, bytes: &[u8]) -> Result<Option<String>, String> {
    let name = program.display();
    if matches!(FileKind::parse(bytes), Ok(FileKind::Elf32)) {
        return Err(format!("{name} is a 32-bit program, and the libraries are for 64 bits"));
    }
    let no_program = |_| format!("{name} is no ELF program");
    let elf = ElfFile64::<Endianness>::parse(bytes).map_err(no_program)?;
    match loader(bytes).map_err(no_program)? {
        None => Err(format!("{name} is static: there is no loader that could preload a library")),
        Some(loader) if String::from_utf8_lossy(loader).contains("musl") => {
            Err(format!("{name} is built for musl, and the libraries are for glibc"))
        }
        Some(_) => Ok(own_allocator(&elf).map(|function| {
            format!("{name} links {function} itself: requests to that never reach a preloaded library")
        })),
    }
}

/// Returns an allocation function that the program itself defines, as far as its symbols show.
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
pub(crate) mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_name_given_twice_is_two_arms_and_a_new_name_adds_its_library() {
        let mine = Named { name: "mine".into(), path: "/lib/mine.so".into() };
        let names = names(&owned(&["glibc", "mine", "glibc"]), std::slice::from_ref(&mine)).unwrap();
        let candidates = candidates(&names, &[mine], "a.so");
        let labels: Vec<_> = candidates.iter().map(|candidate| candidate.label.as_str()).collect();
        assert_eq!(labels, ["glibc", "mine", "glibc-2"]);
        assert_eq!(candidates[1].variables()[0].1, "/lib/mine.so:a.so");
        let unknown = super::names(&owned(&["malloc"]), &[]).unwrap_err().to_string();
        assert!(unknown.contains("malloc") && unknown.contains("all, glibc, "), "{unknown}");
    }

    /// A path given for an allocator must also apply to its tuned arm, or the two arms would measure different libraries.
    #[test]
    fn a_named_library_serves_the_plain_and_the_tuned_arm() {
        let named = Named { name: "jemalloc".into(), path: "/opt/je.so".into() };
        let candidates = candidates(&owned(&["jemalloc-tuned", "glibc-tuned"]), &[named], "");
        assert_eq!(candidates[0].library.as_deref(), Some(Path::new("/opt/je.so")));
        assert_eq!(candidates[1].library, None);
        assert_eq!(candidates[0].variables()[1].0, "MALLOC_CONF");
    }

    /// Returns an arm named `label`, with a library of that name.
    pub(crate) fn candidate(label: &str) -> Candidate {
        let of_package = label == "jemalloc-tuned";
        Candidate {
            label: label.into(),
            arm: label.into(),
            library: (label != "glibc").then(|| format!("/opt/lib{label}.so.2").into()),
            preloaded: String::new(),
            environment: if of_package { vec![("MALLOC_CONF".into(), "a:b,c:-1".into())] } else { Vec::new() },
            package: None,
            trouble: None,
        }
    }

    /// No archive has our package for `apt-get install`, so the library's file is copied.
    #[test]
    fn lines_to_paste_are_quoted_and_copy_our_library() {
        let words = ["a b", "it's", "", "plain-1:2,x", "$HOME"].map(OsString::from);
        assert_eq!(command_line(&words), "'a b' 'it'\\''s' '' plain-1:2,x '$HOME'");
        let tuned = candidate("jemalloc-tuned");
        assert_eq!(dockerfile(&tuned)[1], "ENV LD_PRELOAD=/usr/local/lib/libjemalloc-tuned.so.2 MALLOC_CONF=a:b,c:-1");
        let ours = Candidate { package: Some((OUR_PACKAGE.into(), "0.1.0".into())), ..candidate(OURS) };
        assert_eq!(dockerfile(&ours)[0], "COPY libzk-alloc.so.2 /usr/local/lib/libzk-alloc.so.2");
    }

    #[test]
    fn a_script_is_followed_to_its_interpreter() {
        assert_eq!(interpreter(b"#!/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"#! /usr/bin/env -S X=1 sh\n"), located(OsStr::new("sh")));
        assert_eq!(interpreter(b"\x7fELF"), None);
    }
}
