//! `exec` with third-party programs: failing arms, whole process trees, and Ctrl-C. A library that is not installed is
//! skipped, and the test says so.

mod common;

use common::{Bench, interrupt, stderr, stdout, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A folder for a test's files, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-files-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_installed(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("skipped: no {program} here");
    }
    found
}

fn lines(count: u32) -> String {
    (0..count).map(|number| format!("{}\n", number.wrapping_mul(2_654_435_761))).collect()
}

fn arms(result: &Value) -> &Vec<Value> {
    result["workloads"][0]["arms"].as_array().unwrap()
}

fn arm<'a>(result: &'a Value, label: &str) -> &'a Value {
    arms(result).iter().find(|arm| arm["label"] == label).unwrap_or_else(|| panic!("no {label}"))
}

fn outcome<'a>(result: &'a Value, label: &str) -> &'a str {
    arm(result, label)["outcome"]["outcome"].as_str().unwrap()
}

fn reason<'a>(result: &'a Value, label: &str) -> &'a str {
    arm(result, label)["outcome"]["reason"].as_str().unwrap_or_else(|| panic!("{}", arm(result, label)))
}

fn said(output: &Output) -> String {
    format!("{}\n{}", stdout(output), stderr(output))
}

/// A library that any process can load and that changes nothing. Tests preload it in place of an allocator.
fn harmless_library() -> Option<String> {
    let folders = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let files = ["libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6"];
    let mut paths = folders.iter().flat_map(|folder| files.map(|file| format!("{folder}/{file}")));
    let found = paths.find(|path| Path::new(path).is_file());
    if found.is_none() {
        eprintln!("skipped: no library of glibc found to preload");
    }
    found
}

/// Runs a program under every installed allocator. Each run must succeed with the same output and have figures.
fn works(name: &str, command: &[&str]) {
    if !is_installed(command[0]) {
        return;
    }
    let bench = Bench::new(name);
    let output = bench.exec("--rounds 2 --same-output -", command).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let result = bench.result();
    for arm in arms(&result) {
        if arm["outcome"]["outcome"] == "left_out" {
            eprintln!("{}: {}", arm["label"], arm["outcome"]["reason"]);
            continue;
        }
        assert_eq!(arm["outcome"]["outcome"], "finished", "{arm}");
        let samples = arm["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2, "{arm}");
        for figure in ["wall_ns", "minflt", "peak_rss_bytes"] {
            assert!(samples.iter().all(|sample| sample[figure].as_u64() > Some(0)), "{figure} in {arm}");
        }
        let settings = arm["identity"]["settings"].to_string();
        assert_eq!(
            settings.contains("LD_PRELOAD"),
            !arm["identity"]["confirmed"].as_array().unwrap().is_empty(),
            "{arm}"
        );
    }
    let text = stdout(&output);
    for part in ["Ceiling: under glibc the kernel takes", "time vs glibc", "Too few rounds for a verdict"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn sort_runs_under_all() {
    let folder = Folder::new("exec-sort");
    works("exec-sort", &["sort", &folder.write("lines", &lines(100_000))]);
}

#[test]
fn python_runs_under_all() {
    let script = "print(sum(len(str(number)) for number in [x * x for x in range(100_000)]))";
    works("exec-python", &["python3", "-c", script]);
}

/// `gcc` starts the compiler proper, so this is a tree of processes.
#[test]
fn gcc_runs_under_all_with_what_it_starts() {
    let folder = Folder::new("exec-gcc");
    let functions: String = (0..500).map(|n| format!("int f{n}(int x) {{ return x * {n} + (x >> 3); }}\n")).collect();
    works("exec-gcc", &["gcc", "-O1", "-S", "-o", "-", &folder.write("a.c", &functions)]);
}

#[test]
fn sqlite_runs_under_all() {
    let sql = "create table t(x); with recursive c(x) as (select 1 union all select x + 1 from c where x < 50000) \
               insert into t select x * 7919 % 50021 from c; select sum(x) from (select x from t order by x limit 9999);";
    works("exec-sqlite", &["sqlite3", ":memory:", sql]);
}

/// A static program would show the same figures under every allocator's name. The driver refuses it with one message.
#[test]
fn a_static_program_is_not_run() {
    let folder = Folder::new("exec-static");
    let (source, program) = (folder.write("a.c", "int main(void) { return 0; }\n"), folder.path("static"));
    let built = Command::new("gcc").args(["-static", "-o", &program, &source]).stderr(Stdio::null()).status();
    if !built.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: gcc makes no static program here");
    }
    let Some(library) = harmless_library() else { return };
    let bench = Bench::new("exec-static");
    let options = format!("--rounds 1 --allocators glibc,mine --library mine={library}");
    let output = bench.exec(&options, &[&program]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(bench.has_no_folder() && stderr(&output).matches("is static").count() == 1, "{}", said(&output));
    // Here a dynamic program starts the static one.
    let bench = Bench::new("exec-static-child");
    let busy = folder.write("b.c", "int main(void) { for (volatile long i = 0; i < 3000000000; i++); return 0; }\n");
    assert!(Command::new("gcc").args(["-static", "-o", &program, &busy]).status().unwrap().success());
    let output = bench.exec(&options, &["sh", "-c", &format!("{program}; exit $?")]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let result = bench.result();
    assert!(reason(&result, "mine").contains("was not mapped in"), "{}", reason(&result, "mine"));
}

/// The loader ignores LD_PRELOAD for a program that gains privileges.
#[test]
fn a_setuid_program_is_not_run() {
    let folder = Folder::new("exec-setuid");
    let program = folder.path("sort");
    fs::copy("/usr/bin/sort", &program).unwrap();
    if chown(&program, Some(65_534), None).is_err() {
        return eprintln!("skipped: only root can give a file away");
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let Some(library) = harmless_library() else { return };
    let bench = Bench::new("exec-setuid");
    let options = format!("--rounds 1 --allocators glibc,mine --library mine={library}");
    let output = bench.exec(&options, &[&program, "/dev/null"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(bench.has_no_folder() && stderr(&output).contains("is setuid"), "{}", said(&output));
}

/// An arm fails if the loader refuses its library, or if a wrapper removes it from the environment. It would measure
/// nothing.
#[test]
fn a_library_that_is_not_mapped_fails_its_arm() {
    let folder = Folder::new("exec-unmapped");
    let text = folder.write("libtext.so", "no library\n");
    let lines = folder.write("lines", &lines(1_000_000));
    let bench = Bench::new("exec-refused");
    let options = format!("--rounds 1 --allocators glibc,text --library text={text}");
    let output = bench.exec(&options, &["sort", &lines]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(reason(&bench.result(), "text").contains("cannot be preloaded"), "{}", said(&output));

    let Some(library) = harmless_library() else { return };
    let bench = Bench::new("exec-unmapped");
    let options = format!("--rounds 1 --allocators glibc,mine --library mine={library}");
    let sorted = ["env", "-u", "LD_PRELOAD", "sort", &lines];
    let output = bench.exec(&options, &sorted).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let result = bench.result();
    let why = reason(&result, "mine");
    assert!(why.contains("was not mapped in") && why.contains("sort"), "{why}");
}

/// An image that sets `LD_PRELOAD` would show its own allocator under glibc's name. So would a program that is linked
/// with an allocator.
#[test]
fn an_allocator_from_elsewhere_does_not_pass_for_glibc() {
    let folder = Folder::new("exec-elsewhere");
    let forwarded = "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n\
                     void *malloc(size_t bytes) { return __libc_malloc(bytes); }\n";
    let (source, library) = (folder.write("a.c", forwarded), folder.path("libtcmalloc_forwarded.so"));
    let gcc = |arguments: &[&str]| {
        let status = Command::new("gcc").args(arguments).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !gcc(&["-shared", "-fPIC", "-o", &library, &source]) {
        return eprintln!("skipped: gcc makes no library here");
    }
    let bench = Bench::new("exec-preloaded");
    let mut driver = bench.exec("--rounds 1 --allocators glibc", &["sh", "-c", "test -z \"$LD_PRELOAD\""]);
    let output = driver.env("LD_PRELOAD", &library).env("MALLOC_ARENA_MAX", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let known = bench.result()["advice"]["ceiling"].to_string();
    assert!(known.contains("an allocator: it is taken out") && known.contains("MALLOC_ARENA_MAX=1"), "{known}");

    let waits = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { free(malloc(9)); return usleep(60000); }\n";
    let (source, program) = (folder.write("b.c", waits), folder.path("linked"));
    assert!(gcc(&["-o", &program, &source, &library]), "gcc links with what it made");
    let bench = Bench::new("exec-linked");
    let output = bench.exec("--rounds 1 --allocators glibc", &[&program]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let known = bench.result()["advice"]["ceiling"].to_string();
    assert!(known.contains("maps libtcmalloc_forwarded.so by itself"), "{known}");
}

/// Each missing allocator has a row that says how to install it, and the run does not fail.
#[test]
fn a_missing_library_is_a_row_that_says_what_brings_it() {
    let folder = Folder::new("exec-missing");
    // No library lies next to this copy of the driver.
    let driver = folder.path("prove-bench");
    fs::copy(env!("CARGO_BIN_EXE_prove-bench"), &driver).unwrap();
    let out = folder.path("out");
    let output = Command::new(driver)
        .args(["exec", "--rounds", "1", "--allocators", "glibc,zk-alloc", "--out", &out, "--", "true"])
        .env_remove("CARGO")
        .output()
        .unwrap();
    let text = stdout(&output);
    if text.contains("zk-alloc: left out: no libzk_alloc.so") {
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(text.contains("--package zk-alloc-preload") && text.contains("--library PATH"), "{text}");
    } else {
        eprintln!("skipped: libzk_alloc.so is installed here");
    }
}

/// A command that fails without any library says nothing about allocators. A command that fails under a library fails
/// that arm.
#[test]
fn a_failing_command_is_told_from_a_failing_arm() {
    let bench = Bench::new("exec-fails");
    let output = bench.exec("--rounds 1", &["sh", "-c", "echo no luck >&2; exit 3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        stderr(&output).contains("fails by itself, without any library: exited with code 3: no luck"),
        "{}",
        said(&output)
    );
    assert!(bench.has_no_folder(), "nothing was measured");

    let Some(library) = harmless_library() else { return };
    let bench = Bench::new("exec-fails-under");
    let options = format!("--rounds 2 --allocators glibc,mine --library mine={library}");
    let output = bench.exec(&options, &["sh", "-c", "test -z \"$LD_PRELOAD\""]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let result = bench.result();
    assert_eq!((outcome(&result, "glibc"), outcome(&result, "mine")), ("finished", "failed"));
    assert_eq!(reason(&result, "mine"), "exited with code 1");
    assert!(arm(&result, "mine")["summary"].is_null(), "a failed arm shows no figures");

    let unknown = bench.exec("--rounds 1", &["no-such-program-here"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("no program no-such-program-here"), "{}", stderr(&unknown));
}

/// A wrong result may be a fast one.
#[test]
fn a_different_output_and_a_refused_one_fail_their_arm() {
    let Some(library) = harmless_library() else { return };
    let folder = Folder::new("exec-output");
    let file = folder.path("out.txt");
    let options = format!("--rounds 1 --allocators glibc,mine --library mine={library}");
    let write = format!("echo \"[$LD_PRELOAD]\" > {file}");
    for (name, more, script, why) in [
        ("exec-stdout", "--same-output -".to_owned(), "echo \"[$LD_PRELOAD]\"", "its output differs"),
        ("exec-file", format!("--same-output {file}"), write.as_str(), "differs from that of the first run"),
    ] {
        let bench = Bench::new(name);
        let output = bench.exec(&format!("{options} {more}"), &["sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(reason(&bench.result(), "mine").contains(why), "{}", said(&output));
        assert_eq!(outcome(&bench.result(), "glibc"), "finished");
    }
    let bench = Bench::new("exec-verify");
    let mut driver = bench.command(&format!("exec {options}"));
    driver.arg("--verify").arg(format!("grep -q '^\\[\\]$' {file} || {{ echo not empty >&2; false; }}"));
    let output = driver.args(["--", "sh", "-c", &write]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let result = bench.result();
    assert_eq!(reason(&result, "mine"), "--verify failed: exited with code 1: not empty");
}

/// The figures include all processes of the command: memory of several at the same time, and processes whose parent
/// exited.
#[test]
fn the_whole_tree_counts() {
    let bench = Bench::new("exec-tree");
    let held = "tail -c 60000000 /dev/zero | (sleep 0.3; tail -c 60000000 | (sleep 0.3; tail -c 1))";
    let script = format!(
        "head -c 60000000 /dev/zero > /dev/null; {}",
        held.replace("tail -c 60000000 /dev/zero", "head -c 60000000 /dev/zero | tail -c 60000000")
    );
    let output = bench.exec("--rounds 1 --allocators glibc", &["sh", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let result = bench.result();
    let sample = &arm(&result, "glibc")["samples"][0];
    assert!(sample["peak_rss_bytes"].as_u64() > Some(60_000_000), "{sample}");
    assert!(sample["minflt"].as_u64() > Some(10_000), "two processes of 60 MB each: {sample}");
    assert!(sample["gauges"]["programs"].as_u64() >= Some(3), "{sample}");
    assert!(arm(&result, "glibc")["rss_over_time"].as_array().unwrap().len() > 10);
}

/// A process that outlives the command would count in the next run.
#[test]
fn what_a_command_leaves_behind_is_ended_and_told() {
    let folder = Folder::new("exec-left");
    let pid = folder.path("pid");
    let bench = Bench::new("exec-left");
    let script = format!("sleep 600 & echo $! > {pid}");
    let output = bench.exec("--rounds 1 --allocators glibc", &["sh", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(stderr(&output).contains("left 1 processes behind"), "{}", stderr(&output));
    let pid = fs::read_to_string(pid).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

/// In a service or a loop, the first interval is cold and is separate from the others. No interval includes the
/// start-up.
#[test]
fn intervals_between_lines_have_cold_and_warm_apart() {
    let bench = Bench::new("exec-each");
    let script = "sleep 0.3; echo proof 0; sleep 0.2; for i in 1 2 3; do echo proof $i; sleep 0.02; done; echo end";
    let output =
        bench.exec("--rounds 2 --allocators glibc,glibc --each ^proof", &["sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let result = bench.result();
    assert_eq!(result["workloads"][0]["timed"], "intervals");
    let samples = arm(&result, "glibc")["samples"].as_array().unwrap();
    let places: Vec<_> = samples.iter().map(|sample| (sample["process"].as_u64(), sample["round"].as_u64())).collect();
    let place = |process, round| (Some(process), Some(round));
    assert_eq!(places, [place(0, 0), place(0, 1), place(0, 2), place(1, 0), place(1, 3), place(1, 4)]);
    let summary = &arm(&result, "glibc-2")["summary"];
    let (cold, warm) = (summary["cold_wall_ns"].as_u64().unwrap(), summary["warm_wall_ns"].as_u64().unwrap());
    assert!((200_000_000..300_000_000).contains(&cold) || cold > 300_000_000, "{summary}");
    assert!(warm >= 20_000_000 && warm < cold, "{summary}");
    assert_eq!(summary["wall_ratio"]["rounds"], 4);

    let few = bench.exec("--rounds 1 --each ^proof", &["echo", "proof"]).output().unwrap();
    assert_eq!(few.status.code(), Some(1));
    assert!(stderr(&few).contains("1 lines of the output match"), "{}", stderr(&few));
}

/// A script must be able to parse stdout as JSON.
#[test]
fn json_is_all_that_goes_to_stdout_and_the_page_has_the_advice() {
    let folder = Folder::new("exec-json");
    let lines = folder.write("lines", &lines(100_000));
    let bench = Bench::new("exec-json");
    let output = bench.exec("--rounds 1 --allocators glibc,glibc-tuned --json", &["sort", &lines]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!(printed, bench.result());
    assert!(printed["advice"]["ceiling"][0].as_str().unwrap().starts_with("Ceiling: "), "{}", printed["advice"]);
    let page = fs::read_to_string(bench.folder().join("report.html")).unwrap();
    for part in ["What to do", "Ceiling: ", "kernel time", "glibc-tuned"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("proof"), "a command proves nothing");
}

/// After Ctrl-C the driver must end soon, end the processes that it started, and write the samples measured so far.
#[test]
fn an_interrupted_run_keeps_its_samples_and_leaves_no_process() {
    let folder = Folder::new("exec-interrupt");
    let lines = folder.write("lines", &lines(50_000));
    let bench = Bench::new("exec-interrupt");
    let mut driver = bench.exec("--rounds 10000 --allocators glibc,glibc-tuned", &["sort", &lines]).spawn().unwrap();
    wait_for(&mut driver, "round 2 of");
    interrupt(&mut driver, 130);
    let result = bench.result();
    assert_eq!(result["interrupted"], true);
    assert_eq!(outcome(&result, "glibc"), "interrupted");
    assert!(arm(&result, "glibc")["summary"]["warm_wall_ns"].is_u64(), "{result}");

    let pid = folder.path("pid");
    let bench = Bench::new("exec-interrupt-first");
    let mut driver =
        bench.exec("--rounds 1", &["sh", "-c", &format!("echo $$ > {pid}; exec sleep 600")]).spawn().unwrap();
    let since = Instant::now();
    while fs::read_to_string(&pid).map_or(true, |text| !text.ends_with('\n')) {
        assert!(since.elapsed() < Duration::from_secs(60), "the command starts");
        thread::sleep(Duration::from_millis(10));
    }
    interrupt(&mut driver, 130);
    assert!(!Path::new("/proc").join(fs::read_to_string(&pid).unwrap().trim()).exists());
}
