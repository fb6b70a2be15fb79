//! Builds the library and C programs, and runs processes with the library and without it.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Returns the library's path. Builds the library with this test's profile, because cargo does not build a package's cdylib for its tests.
/// `ZK_ALLOC_TEST_LIBRARY` selects another library, such as that of `cargo make dist`.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(built) = std::env::var_os("ZK_ALLOC_TEST_LIBRARY") {
            let built = PathBuf::from(built);
            assert!(built.is_absolute() && built.is_file(), "ZK_ALLOC_TEST_LIBRARY: no file {}", built.display());
            return built;
        }
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let output = Command::new(env!("CARGO"))
            .args(["build", "--package", "zk-alloc-preload", "--profile", profile, "--message-format=json"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let messages = String::from_utf8(output.stdout).expect("cargo's messages are text");
        let end = messages.find("/libzk_alloc.so\"").expect("cargo names the library") + "/libzk_alloc.so".len();
        let start = messages[..end].rfind('"').expect("a name is quoted") + 1;
        PathBuf::from(&messages[start..end])
    })
}

/// How a program runs: without the library, with it at the default threshold, or with every request in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    Without,
    Default,
    Everything,
}

pub(crate) const ARMS: [Arm; 3] = [Arm::Without, Arm::Default, Arm::Everything];

impl Arm {
    /// Returns a command with this arm's environment, and without the settings of the test's own environment.
    pub(crate) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ZK_ALLOC") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        if self != Self::Without {
            command.env("LD_PRELOAD", library());
        }
        if self == Self::Everything {
            command.env("ZK_ALLOC_MIN_BYTES", "0");
        }
        command
    }
}

/// The output of a process, as text.
pub(crate) struct Outcome {
    pub(crate) ok: bool,
    /// The signal that ended the process.
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn outcome_of(command: &mut Command) -> Outcome {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (ok, signal) = (output.status.success(), output.status.signal());
    Outcome { ok, signal, out: text(&output.stdout), err: text(&output.stderr) }
}

/// Runs a program, asserts that it succeeds and prints "ok", and returns its standard error.
pub(crate) fn errors_of(command: &mut Command) -> String {
    let Outcome { ok, out, err, .. } = outcome_of(command);
    assert!(ok && out == "ok\n", "{command:?}: {ok} {out:?} {err:?}");
    err
}

/// Runs a program, and asserts that it prints "ok" and nothing else.
pub(crate) fn assert_ok(command: &mut Command) {
    assert_eq!(errors_of(command), "", "{command:?}");
}

/// Runs a program in each arm, and asserts that it prints "ok" and nothing else.
pub(crate) fn in_all_arms(program: &Path, arguments: &[&str]) {
    for arm in ARMS {
        assert_ok(arm.command(program).args(arguments));
    }
}

/// Runs a program with the library's defaults, asserts that it prints "ok", and returns its report.
pub(crate) fn report_of(program: &Path, arguments: &[&str]) -> String {
    errors_of(Arm::Default.command(program).args(arguments).env("ZK_ALLOC_REPORT", "1"))
}

/// Defines a test for each row: how the program runs, its source, and its arguments.
macro_rules! programs {
    ($($(#[doc = $what:literal])* $name:ident: $run:ident($source:literal, $arguments:expr);)*) => {$(
        $(#[doc = $what])*
        #[test]
        fn $name() {
            $run(&$crate::support::program($source), $arguments);
        }
    )*};
}
pub(crate) use programs;

/// Returns the file that a shell would run for this program.
pub(crate) fn path_of(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Returns whether a program exists. Prints a line if it does not, because a test that needs the program is then skipped.
pub(crate) fn has(program: &str) -> bool {
    let is_there = path_of(program).is_some();
    if !is_there {
        eprintln!("SKIPPED: there is no {program}, so this test shows nothing");
    }
    is_there
}

/// Returns a shell with the library that runs a script, or `None` if there is no bash. `$0` of the script is the program `hello`.
pub(crate) fn bash(script: &str) -> Option<Command> {
    let mut command = has("bash").then(|| Arm::Default.command("bash"))?;
    command.args(["--norc", "-c", script]).arg(program("hello.c"));
    Some(command)
}

/// Flags for C++. They allow a source to define only some of the operators.
const CPP: [&str; 3] = ["-std=c++17", "-Wno-mismatched-new-delete", "-Wno-sized-deallocation"];

/// Compiles a source in `tests/c`, once per process. The name of the output appears in reports.
pub(crate) fn compiled(output: &str, source: &str, flags: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut known = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = known.get(output) {
        return program.clone();
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
    std::fs::create_dir_all(&folder).expect("a folder for programs");
    let program = folder.join(output);
    let is_cpp = source.ends_with(".cc") || flags.iter().any(|flag| flag.starts_with("-std=c++"));
    let mut command = Command::new(if is_cpp { "g++" } else { "gcc" });
    command.args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-o"]).arg(&program);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source));
    command.args(CPP.iter().filter(|_| is_cpp)).args(flags).arg("-ldl");
    let compiled = outcome_of(&mut command);
    assert!(compiled.ok, "{command:?}: {}", compiled.err);
    known.insert(output.to_owned(), program.clone());
    program
}

/// Returns a source file's name without its extension.
fn stem(source: &str) -> &str {
    source.split_once('.').expect("a source has an ending").0
}

/// Compiles a source as a program of the same name.
pub(crate) fn program(source: &str) -> PathBuf {
    compiled(stem(source), source, &[])
}

/// Compiles a source as a library, with `LIBRARY` defined.
pub(crate) fn library_of(name: &str, source: &str) -> PathBuf {
    compiled(&format!("lib{name}.so"), source, &["-DLIBRARY", "-shared", "-fPIC"])
}

/// Compiles a program and a library from the same source, and links the program with the library.
pub(crate) fn program_with_library(source: &str) -> (PathBuf, PathBuf) {
    let name = stem(source);
    let library = library_of(name, source);
    let folder = library.parent().expect("a folder").display();
    let linked = [&format!("-L{folder}"), "-Wl,--no-as-needed", &format!("-l{name}"), &format!("-Wl,-rpath,{folder}")];
    (compiled(name, source, &linked), library)
}

/// Makes an empty folder for the files of a test.
pub(crate) fn empty_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder for files");
    folder
}

/// Returns a path as text, for use in a list of arguments.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}
