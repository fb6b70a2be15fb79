//! Tests `exec` with third-party programs: failing arms, whole process trees, and Ctrl-C. Libraries that are not installed are skipped,
//! with a message.

mod common;
#[path = "../../integrations/preload/tests/support/mod.rs"]
mod support;

use common::{Bench, Outcome, ended, interrupt, list, named, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn lines(count: u32) -> String {
    (0..count).map(|number| format!("{}\n", number.wrapping_mul(2_654_435_761))).collect()
}

fn arm<'a>(result: &'a Value, label: &str) -> &'a Value {
    named(&result["workloads"][0]["arms"], "label", label)
}

fn outcome<'a>(result: &'a Value, label: &str) -> &'a str {
    arm(result, label)["outcome"]["outcome"].as_str().unwrap()
}

/// Runs a command under glibc, expects success, and returns the result.
#[track_caller]
fn under_glibc(name: &str, command: &[&str]) -> Value {
    let bench = Bench::new(name);
    bench.exec("--rounds 1 --allocators glibc", command, 0);
    bench.result()
}

/// Asserts that the arm failed for a reason that contains `text`.
#[track_caller]
fn assert_failed(bench: &Bench, label: &str, text: &str) {
    let result = bench.result();
    let reason = arm(&result, label)["outcome"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains(text), "{}", arm(&result, label));
}

/// Runs gcc. Returns whether it succeeded.
fn gcc(arguments: &[&str]) -> bool {
    let status = Command::new("gcc").args(arguments).stderr(Stdio::null()).status();
    let is_made = status.is_ok_and(|status| status.success());
    if !is_made {
        eprintln!("skipped: gcc does not make {arguments:?} here");
    }
    is_made
}

/// Returns options for one round under two arms: glibc, and a preloaded library that contains no allocator. `None` if gcc can't build it.
fn with_harmless_library(bench: &Bench) -> Option<String> {
    let library = bench.path("libharmless.so");
    let is_made = gcc(&["-shared", "-o", &library, "-x", "c", "/dev/null"]);
    is_made.then(|| format!("--rounds 1 --allocators glibc,mine --library mine={library}"))
}

/// Runs a program under every installed allocator. All runs must succeed, produce the same output, and have measurements.
fn works(name: &str, command: &[&str]) {
    if !support::has(command[0]) {
        return;
    }
    let bench = Bench::new(name);
    let text = bench.exec("--rounds 2 --same-output -", command, 0).out;
    let result = bench.result();
    for arm in list(&result["workloads"][0]["arms"]) {
        if arm["outcome"]["outcome"] == "left_out" {
            let reason = arm["outcome"]["reason"].as_str().unwrap();
            eprintln!("{}: {reason}", arm["label"]);
            assert!(reason.contains("apt-get install") || reason.contains("libzk_alloc.so"), "{reason}");
            continue;
        }
        assert_eq!(arm["outcome"]["outcome"], "finished", "{arm}");
        let samples = list(&arm["samples"]);
        assert_eq!(samples.len(), 2, "{arm}");
        for figure in ["wall_ns", "minflt", "peak_rss_bytes"] {
            assert!(samples.iter().all(|sample| sample[figure].as_u64() > Some(0)), "{figure} in {arm}");
        }
        let is_preloaded = arm["identity"]["settings"].to_string().contains("LD_PRELOAD");
        assert_eq!(is_preloaded, !list(&arm["identity"]["confirmed"]).is_empty(), "{arm}");
    }
    for part in ["Ceiling: under glibc the kernel takes", "time vs glibc", "Too few rounds for a verdict"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

/// `gcc` runs the actual compiler in a child process, so this also tests a process tree.
#[test]
fn programs_and_their_children_run_under_every_allocator() {
    let bench = Bench::new("exec-works");
    works("exec-sort", &["sort", &bench.write("lines", &lines(100_000))]);
    let script = "print(sum(len(str(number)) for number in [x * x for x in range(100_000)]))";
    works("exec-python", &["python3", "-c", script]);
    let functions: String = (0..500).map(|n| format!("int f{n}(int x) {{ return x * {n} + (x >> 3); }}\n")).collect();
    works("exec-gcc", &["gcc", "-O1", "-S", "-o", "-", &bench.write("a.c", &functions)]);
    let sql = "create table t(x); with recursive c(x) as (select 1 union all select x + 1 from c where x < 50000) \
               insert into t select x * 7919 % 50021 from c; select sum(x) from (select x from t order by x limit 9999);";
    works("exec-sqlite", &["sqlite3", ":memory:", sql]);
}

/// A statically linked program ignores preloaded libraries, so every arm would measure the same allocator. The driver must refuse it with
/// one message.
#[test]
fn a_static_program_is_not_run() {
    let bench = Bench::new("exec-static");
    let program = bench.path("static");
    let busy = bench.write("a.c", "int main(void) { for (volatile long i = 0; i < 3000000000; i++); return 0; }\n");
    let Some(options) = with_harmless_library(&bench) else { return };
    if !gcc(&["-static", "-o", &program, &busy]) {
        return;
    }
    let outcome = bench.exec(&options, &[&program], 1);
    assert!(bench.has_no_folder() && outcome.err.matches("is static").count() == 1, "{outcome:?}");
    // Here the command is a dynamic program that starts the static one.
    let bench = Bench::new("exec-static-child");
    bench.exec(&options, &["sh", "-c", &format!("{program}; exit $?")], 1);
    assert_failed(&bench, "mine", "was not mapped in");
}

/// The loader ignores libraries in LD_PRELOAD for a setuid program, so the driver must refuse it.
#[test]
fn a_setuid_program_is_not_run() {
    let bench = Bench::new("exec-setuid");
    let program = bench.path("sort");
    fs::copy("/usr/bin/sort", &program).unwrap();
    if chown(&program, Some(65_534), None).is_err() {
        return eprintln!("skipped: only root can give a file away");
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let Some(options) = with_harmless_library(&bench) else { return };
    let outcome = bench.exec(&options, &[&program, "/dev/null"], 1);
    assert!(bench.has_no_folder() && outcome.err.contains("is setuid"), "{outcome:?}");
}

/// An arm must fail if the loader refuses its library, or if a wrapper such as `env` removes LD_PRELOAD, because it would measure the
/// default allocator.
#[test]
fn a_library_that_is_not_mapped_fails_its_arm() {
    let bench = Bench::new("exec-refused");
    let text = bench.write("libtext.so", "no library\n");
    let lines = bench.write("lines", &lines(1_000_000));
    bench.exec(&format!("--rounds 1 --allocators glibc,text --library text={text}"), &["sort", &lines], 1);
    assert_failed(&bench, "text", "cannot be preloaded");

    let Some(options) = with_harmless_library(&bench) else { return };
    let bench = Bench::new("exec-unmapped");
    bench.exec(&options, &["env", "-u", "LD_PRELOAD", "sort", &lines], 1);
    assert_failed(&bench, "mine", "was not mapped in");
    assert_failed(&bench, "mine", "sort");
}

/// If `LD_PRELOAD` already names an allocator, as in some container images, glibc's row would show that one. The same holds if the program
/// links its own allocator.
#[test]
fn another_allocator_is_not_reported_as_glibc() {
    let bench = Bench::new("exec-elsewhere");
    let forwarded = "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n\
                     void *malloc(size_t bytes) { return __libc_malloc(bytes); }\n";
    let (source, library) = (bench.write("a.c", forwarded), bench.path("libtcmalloc_forwarded.so"));
    if !gcc(&["-shared", "-fPIC", "-o", &library, &source]) {
        return;
    }
    // Libraries that are not allocators stay preloaded.
    let other = bench.path("libharmless.so");
    assert!(gcc(&["-shared", "-o", &other, "-x", "c", "/dev/null"]), "gcc makes another library");
    let mut driver =
        bench.exec_command("--rounds 1 --allocators glibc", &["sh", "-c", "test \"$LD_PRELOAD\" = $0", &other]);
    ended(driver.env("LD_PRELOAD", format!("{library} {other}")).env("MALLOC_ARENA_MAX", "1"), 0);
    let known = bench.result()["advice"]["ceiling"].to_string();
    assert!(known.contains("an allocator: every run leaves it out") && known.contains("MALLOC_ARENA_MAX=1"), "{known}");

    let waits = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { free(malloc(9)); return usleep(60000); }\n";
    let (source, program) = (bench.write("b.c", waits), bench.path("linked"));
    assert!(gcc(&["-o", &program, &source, &library]), "gcc links against its own library");
    let known = under_glibc("exec-linked", &[&program])["advice"]["ceiling"].to_string();
    assert!(known.contains("maps libtcmalloc_forwarded.so by itself"), "{known}");
}

/// Each missing allocator must have a row that explains how to install it, and the run must not fail.
#[test]
fn a_missing_library_has_a_row_that_says_how_to_install_it() {
    let bench = Bench::new("exec-missing");
    // The driver looks for the library next to itself, and there is none next to this copy.
    let driver = bench.path("prove-bench");
    fs::copy(env!("CARGO_BIN_EXE_prove-bench"), &driver).unwrap();
    let mut driver = Command::new(driver);
    driver.args("exec --rounds 1 --allocators zk-alloc,glibc-tuned".split(' ')).args(["--out", &bench.path("out")]);
    // Options after the command's name belong to the command, even without a preceding `--`.
    let text = ended(driver.args(["test", "--json"]).env_remove("CARGO"), 0).out;
    if text.contains("zk-alloc: left out: no libzk_alloc.so") {
        assert!(text.contains("--package zk-alloc-preload") && text.contains("--library PATH"), "{text}");
        assert!(
            text.contains("Nothing to compare glibc-tuned with"),
            "the first that takes part is the baseline: {text}"
        );
    } else {
        eprintln!("skipped: libzk_alloc.so is installed here");
    }
}

/// If a command fails even without a preloaded library, the run must end with an error. If it fails only under one library, only that arm
/// must fail.
#[test]
fn a_failing_command_is_distinguished_from_a_failing_arm() {
    let bench = Bench::new("exec-fails");
    let Outcome { err, .. } = bench.exec("--rounds 1", &["sh", "-c", "echo no luck >&2; exit 3"], 1);
    assert!(err.contains("fails by itself, without any library: exited with code 3: no luck"), "{err}");
    let Outcome { err, .. } = bench.exec("--rounds 1", &["no-such-program-here"], 1);
    assert!(err.contains("no program no-such-program-here"), "{err}");
    let text = bench.write("text", "no program\n");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    let Outcome { err, .. } = bench.exec("--rounds 1", &[&text], 1);
    assert!(err.contains("is no ELF program"), "{err}");
    assert!(bench.has_no_folder(), "nothing was measured");

    let Some(options) = with_harmless_library(&bench) else { return };
    let bench = Bench::new("exec-fails-under");
    bench.exec(&options, &["sh", "-c", "test -z \"$LD_PRELOAD\""], 1);
    let result = bench.result();
    assert_eq!((outcome(&result, "glibc"), outcome(&result, "mine")), ("finished", "failed"));
    assert_failed(&bench, "mine", "exited with code 1");
    assert!(arm(&result, "mine")["summary"].is_null(), "a failed arm shows no figures");
}

/// An arm that computes a wrong result may look fast, so it must fail.
#[test]
fn an_arm_fails_if_its_output_differs_or_is_rejected() {
    let bench = Bench::new("exec-output");
    let Some(options) = with_harmless_library(&bench) else { return };
    let file = bench.path("out.txt");
    let write = format!("echo \"[$LD_PRELOAD]\" > {file}");
    let write_alone = format!("test -n \"$LD_PRELOAD\" || echo > {file}");
    for (name, more, script, why) in [
        ("exec-stdout", "--same-output -".to_owned(), "echo \"[$LD_PRELOAD]\"", "its output differs"),
        ("exec-file", format!("--same-output {file}"), write.as_str(), "differs from that of the first run"),
        // A file left by the previous run must not be taken for the output of this one.
        ("exec-no-file", format!("--same-output {file}"), write_alone.as_str(), "it did not write"),
    ] {
        let bench = Bench::new(name);
        bench.exec(&format!("{options} {more}"), &["sh", "-c", script], 1);
        assert_failed(&bench, "mine", why);
        assert_eq!(outcome(&bench.result(), "glibc"), "finished");
    }
    let mut driver = bench.command(&format!("exec {options}"));
    driver.arg("--verify").arg(format!("grep -q '^\\[\\]$' {file} || {{ echo not empty >&2; false; }}"));
    ended(driver.args(["--", "sh", "-c", &write]), 1);
    assert_failed(&bench, "mine", "--verify failed: exited with code 1: not empty");
}

/// Measurements must include all processes of the command, whether they run at the same time or outlive their parent.
#[test]
fn figures_cover_the_whole_process_tree() {
    let script = "head -c 60000000 /dev/zero > /dev/null; head -c 60000000 /dev/zero | tail -c 60000000 | \
                  (sleep 0.3; tail -c 60000000 | (sleep 0.3; tail -c 1))";
    let result = under_glibc("exec-tree", &["sh", "-c", script]);
    let sample = &arm(&result, "glibc")["samples"][0];
    assert!(sample["peak_rss_bytes"].as_u64() > Some(60_000_000), "{sample}");
    assert!(sample["minflt"].as_u64() > Some(10_000), "two processes of 60 MB each: {sample}");
    assert!(sample["gauges"]["programs"].as_u64() >= Some(3), "{sample}");
    assert!(list(&arm(&result, "glibc")["rss_over_time"]).len() > 10);
}

/// A process that outlives the command would disturb the next run and be counted in it.
#[test]
fn processes_that_outlive_the_command_are_killed_and_reported() {
    let bench = Bench::new("exec-left");
    let pid = bench.path("pid");
    let script = format!("sleep 600 & echo $! > {pid}");
    let Outcome { err, .. } = bench.exec("--rounds 1 --allocators glibc", &["sh", "-c", &script], 0);
    assert!(err.contains("left 1 processes behind"), "{err}");
    let pid = fs::read_to_string(pid).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

/// With `--each`, the first interval of a run is cold and the others are warm. No interval includes the command's startup.
#[test]
fn the_first_interval_between_lines_is_cold_and_the_others_are_warm() {
    let bench = Bench::new("exec-each");
    // From its second run on, the script prints one more line. The interval that this line ends has no counterpart in the first run.
    let script = "sleep 0.3; echo proof 0; sleep 0.2; for i in 1 2 3; do printf proof; sleep 0.01; echo $i; sleep 0.01; done; \
                  test ! -f $0 || echo proof 4; touch $0";
    let command = ["sh", "-c", script, &bench.path("ran")];
    bench.exec("--rounds 2 --allocators glibc,glibc --each ^proof", &command, 0);
    let result = bench.result();
    assert_eq!(result["workloads"][0]["timed"], "intervals");
    let samples = list(&arm(&result, "glibc")["samples"]);
    let places: Vec<_> = samples.iter().map(|sample| (sample["process"].as_u64(), sample["round"].as_u64())).collect();
    let place = |process, round| (Some(process), Some(round));
    assert_eq!(places, [place(0, 0), place(0, 1), place(0, 2), place(1, 0), place(1, 3), place(1, 4)]);
    let summary = &arm(&result, "glibc-2")["summary"];
    let (cold, warm) = (summary["cold_wall_ns"].as_u64().unwrap(), summary["warm_wall_ns"].as_u64().unwrap());
    assert!(cold >= 200_000_000 && warm >= 20_000_000 && warm < cold, "{summary}");
    assert_eq!(summary["wall_ratio"]["rounds"], 4);

    let Outcome { err, .. } = bench.exec("--rounds 1 --each ^proof", &["echo", "proof"], 1);
    assert!(err.contains("1 lines of the output match"), "{err}");
}

/// A script must be able to parse stdout as JSON.
#[test]
fn stdout_is_only_json_and_the_page_has_the_advice() {
    let bench = Bench::new("exec-json");
    let lines = bench.write("lines", &lines(100_000));
    let outcome = bench.exec("--rounds 1 --allocators glibc-tuned,glibc --json", &["sort", &lines], 0);
    let printed: Value = serde_json::from_str(&outcome.out).expect("stdout is JSON");
    assert_eq!((&printed, &printed["workloads"][0]["baseline"]), (&bench.result(), &"glibc".into()));
    assert!(printed["advice"]["ceiling"][0].as_str().unwrap().starts_with("Ceiling: "), "{}", printed["advice"]);
    let page = fs::read_to_string(bench.folder().join("report.html")).unwrap();
    for part in ["What to do", "Ceiling: ", "kernel time", "glibc-tuned"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("proof"), "a command proves nothing");
}

/// After Ctrl-C, the driver must exit soon, stop the processes that it started, and write the samples measured so far.
#[test]
fn an_interrupted_run_keeps_its_samples_and_leaves_no_process() {
    let bench = Bench::new("exec-interrupt");
    let lines = bench.write("lines", &lines(50_000));
    let options = "--rounds 10000 --allocators glibc,glibc-tuned";
    let mut driver = bench.exec_command(options, &["sort", &lines]).spawn().unwrap();
    wait_for(&mut driver, "round 2 of");
    interrupt(&mut driver, 130);
    let result = bench.result();
    assert_eq!(result["interrupted"], true);
    assert_eq!(outcome(&result, "glibc"), "interrupted");
    assert!(arm(&result, "glibc")["summary"]["warm_wall_ns"].is_u64(), "{result}");

    let pid = bench.path("pid");
    let bench = Bench::new("exec-interrupt-first");
    let script = format!("echo $$ > {pid}; exec sleep 600");
    let mut driver = bench.exec_command("--rounds 1", &["sh", "-c", &script]).spawn().unwrap();
    let since = Instant::now();
    while fs::read_to_string(&pid).map_or(true, |text| !text.ends_with('\n')) {
        assert!(since.elapsed() < Duration::from_secs(60), "the command starts");
        thread::sleep(Duration::from_millis(10));
    }
    interrupt(&mut driver, 130);
    assert!(!Path::new("/proc").join(fs::read_to_string(&pid).unwrap().trim()).exists());
}
