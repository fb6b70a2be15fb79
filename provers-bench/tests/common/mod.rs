//! Helpers that run the real driver with Plonky3's provers.

#![allow(dead_code, reason = "each test binary uses some of these")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The binaries of Plonky3's package that the tests use. Other arms are left out, because their allocators take minutes to build.
pub(crate) const BINARIES: [&str; 6] =
    ["bench-plonky3", "record", "with-bump-reset", "with-glibc", "with-jemalloc", "with-zk-alloc"];

/// Returns the path of one of [`BINARIES`]. Builds the package first, as `cargo prove-bench plonky3` does, so that both share one build.
pub(crate) fn plonky3(binary: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let built = || {
        let ours = Path::new(env!("CARGO_BIN_EXE_prove-bench"));
        let target = ours.ancestors().nth(2).expect("it lies in the folder of a profile, in cargo's target folder");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("provers/plonky3/Cargo.toml");
        let theirs = target.join("provers/plonky3");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--release", "--manifest-path"])
            .arg(manifest)
            .args(BINARIES.iter().flat_map(|name| ["--bin", name]))
            .args(["--no-default-features", "--features", "jemalloc"])
            .env("CARGO_TARGET_DIR", &theirs)
            .env("CARGO_BUILD_BUILD_DIR", target)
            .status();
        assert!(status.expect("cargo starts").success(), "the package of Plonky3's provers could not be built");
        theirs.join("release")
    };
    assert!(BINARIES.contains(&binary), "{binary} is not built");
    FOLDER.get_or_init(built).join(binary)
}

/// One run of the driver, with a folder for its files that is removed on drop.
pub(crate) struct Bench {
    files: PathBuf,
    out: PathBuf,
}

impl Bench {
    /// Creates the folder. `name` must differ between the tests of one process.
    pub(crate) fn new(name: &str) -> Self {
        let files = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&files).expect("a folder for a test");
        Self { out: files.join("out"), files }
    }

    /// Returns the path of a file of the test.
    pub(crate) fn path(&self, name: &str) -> String {
        self.files.join(name).to_str().expect("a path that is text").to_owned()
    }

    /// Writes a file of the test and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("a file of a test");
        path
    }

    /// Returns the command that runs the driver with `arguments`. Tools such as `exec` run in this package's driver, provers in that of
    /// Plonky3's package. `CARGO` is unset, so the driver does not build the binaries again, as it would under `cargo run`.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let word = arguments.split_whitespace().next().unwrap_or_default();
        let is_tool = ["compare", "exec", "replay", "report"].contains(&word);
        let mut command =
            Command::new(if is_tool { env!("CARGO_BIN_EXE_prove-bench").into() } else { plonky3("bench-plonky3") });
        command.args(arguments.split_whitespace()).env_remove("CARGO");
        if word != "replay" {
            command.arg("--out").arg(&self.out);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns the command that runs `exec` with `options` on `command`, whose words may contain spaces.
    pub(crate) fn exec_command(&self, options: &str, command: &[&str]) -> Command {
        let mut driver = self.command(&format!("exec {options}"));
        driver.arg("--").args(command);
        driver
    }

    /// Runs [`Self::exec_command`], which must exit with `code`.
    #[track_caller]
    pub(crate) fn exec(&self, options: &str, command: &[&str], code: i32) -> Outcome {
        ended(&mut self.exec_command(options, command), code)
    }

    /// Runs the driver, which must exit with `code`.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &str, code: i32) -> Outcome {
        ended(&mut self.command(arguments), code)
    }

    /// Runs Plonky3's provers with these options and expects success. Returns the run, its result and its table.
    #[track_caller]
    pub(crate) fn proved(name: &str, options: &str) -> (Self, Value, String) {
        let bench = Self::new(name);
        let table = bench.run(&format!("plonky3 {options}"), 0).out;
        let result = bench.result();
        (bench, result, table)
    }

    /// Like [`Self::run`], but injects `fault` into a child.
    #[track_caller]
    pub(crate) fn run_with_fault(&self, arguments: &str, fault: &str, code: i32) -> Outcome {
        ended(self.command(arguments).env("PROVE_BENCH_TEST_FAULT", fault), code)
    }

    /// Runs the driver with arguments that it must refuse. It must print a one-line reason that contains `text`, and no other output.
    #[track_caller]
    pub(crate) fn refuses(&self, arguments: &str, code: i32, text: &str) {
        let Outcome { out, err } = self.run(arguments, code);
        assert!(err.lines().count() == 1 && err.contains(text) && out.is_empty(), "{arguments}: {out}\n{err}");
    }

    /// Returns the folder of the only run.
    pub(crate) fn folder(&self) -> PathBuf {
        let mut folders = fs::read_dir(&self.out).expect("a run left its folder").map(|entry| entry.unwrap().path());
        let folder = folders.next().expect("a run left its folder");
        assert_eq!(folders.next(), None, "one run, one folder");
        folder
    }

    /// Returns whether no run has created a folder.
    pub(crate) fn has_no_folder(&self) -> bool {
        fs::read_dir(&self.out).map_or(true, |mut folders| folders.next().is_none())
    }

    /// Returns the content of `result.json`.
    pub(crate) fn result(&self) -> Value {
        let text = fs::read(self.folder().join("result.json")).expect("a result.json");
        serde_json::from_slice(&text).expect("result.json is JSON")
    }

    /// Returns the rows of `samples.csv`, each as an object with a member for each column.
    pub(crate) fn samples(&self) -> Vec<Value> {
        let mut reader = csv::Reader::from_path(self.folder().join("samples.csv")).expect("a samples.csv");
        let rows: Result<Vec<std::collections::BTreeMap<String, String>>, _> = reader.deserialize().collect();
        rows.expect("samples.csv is CSV").into_iter().map(|row| serde_json::to_value(row).unwrap()).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.files);
    }
}

/// Returns the elements of an array in a result.
pub(crate) fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

pub(crate) fn named<'a>(value: &'a Value, key: &str, name: &str) -> &'a Value {
    list(value).iter().find(|item| item[key] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the result of `arm` in `workload`.
pub(crate) fn arm<'a>(result: &'a Value, workload: &str, arm: &str) -> &'a Value {
    named(&named(&result["workloads"], "workload", workload)["arms"], "label", arm)
}

/// The output of a process, as text.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a process, which must exit with `code`.
#[track_caller]
pub(crate) fn ended(command: &mut Command, code: i32) -> Outcome {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let outcome = Outcome { out: text(&output.stdout), err: text(&output.stderr) };
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}\n{}", outcome.out, outcome.err);
    outcome
}

/// Reads the driver's stderr up to the first line that contains `text`. The rest stays unread.
pub(crate) fn wait_for(driver: &mut Child, text: &str) {
    let mut progress = BufReader::with_capacity(1, driver.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(progress.read_line(&mut line).unwrap(), 0, "the driver ended early");
    }
    driver.stderr = Some(progress.into_inner());
}

/// Sends Ctrl-C. The driver must exit soon, with `code`.
pub(crate) fn interrupt(driver: &mut Child, code: i32) {
    kill(Pid::from_raw(driver.id().cast_signed()), Signal::SIGINT).unwrap();
    let started = Instant::now();
    // The pipe closes when the driver exits; its children have their own pipes.
    let mut rest = String::new();
    driver.stderr.take().unwrap().read_to_string(&mut rest).unwrap();
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
    assert_eq!(driver.wait().unwrap().code(), Some(code), "{rest}");
}
