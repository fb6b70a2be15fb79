//! Tests the output of the library: its messages and the file that receives them, the report, and the call sites that `ZK_ALLOC_PROFILE`
//! samples.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use support::{
    Arm, assert_ok, bash, compiled, empty_folder, errors_of, has, library_of, outcome_of, program, report_of,
};
use zk_alloc_profile::{Profile, Value};

/// Runs the program with standard error redirected to a file. Returns the contents of that file and of the program's data file.
fn written(program: &Path, how: &str, retain: &str, more: &[&str]) -> (String, String) {
    let folder = empty_folder(&format!("messages-{how}-{retain}-{}", more.len()));
    let (error, data) = (folder.join("error"), folder.join("data"));
    File::create(&data).expect("a file");
    // The shell itself runs without the library. If `how` is `absent`, it starts the program without a standard error.
    let start = if how == "absent" { r#"exec "$0" "$@" 2>&-"# } else { r#"exec "$0" "$@" 2> "$ERROR""# };
    let script = format!(r#"export LD_PRELOAD="$LIBRARY"; {start}"#);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program).args(["standard error", how]).arg(&data).args(more);
    command.env_remove("LD_PRELOAD").env("LIBRARY", support::library()).env("ERROR", &error);
    let output = outcome_of(command.env("ZK_ALLOC_REPORT", "1").env("ZK_ALLOC_RETAIN_BYTES", retain));
    assert_eq!((output.out.as_str(), output.err.as_str()), ("ok\n", ""), "{how} {more:?}");
    assert_eq!(output.ok, more.is_empty(), "{how} {more:?}");
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    (read(&error), read(&data))
}

/// If a program closes descriptor 2, or is started without it, the next file that it opens gets that number.
#[test]
fn no_message_lands_in_a_file_that_is_not_standard_error() {
    let program = compiled("stderr", "messages.c", &[]);
    for (more, last) in [(&[][..], "report of stderr"), (&["twice"], "no allocation begins there")] {
        // The library checks the setting when the process begins.
        let at_start = |error: &str| error.starts_with("zk-alloc: ZK_ALLOC_RETAIN_BYTES=\"garbage\" is not");
        for (retain, early) in [("garbage", 1), ("1G", 0)] {
            for (how, late) in [("kept", 1), ("back", 1), ("reused", 0), ("closed", 0)] {
                let (error, data) = written(&program, how, retain, more);
                assert_eq!((error.lines().count(), data.as_str()), (early + late, ""), "{how} {more:?}: {error}");
                let is_reported = (at_start(&error), error.contains(last));
                assert_eq!(is_reported, (early == 1, late == 1), "{how} {more:?}: {error}");
            }
            assert_eq!(written(&program, "absent", retain, more), (String::new(), String::new()), "{more:?}");
        }
    }
}

/// Tools that find memory errors must see each request, with `ZK_ALLOC=off` and without it.
#[test]
fn valgrind_sees_what_the_program_does_with_its_memory() {
    if !has("valgrind") {
        return;
    }
    let program = compiled("freed", "messages.c", &["-O0"]);
    for off in [false, true] {
        let mut command = Arm::Default.command("valgrind");
        command.arg(&program).arg("reads freed").env("ZK_ALLOC_REPORT", "1");
        let output = outcome_of(command.envs(off.then_some(("ZK_ALLOC", "off"))));
        if output.err.contains("unrecognised instruction") || output.err.contains("Illegal opcode") {
            return eprintln!(
                "SKIPPED: valgrind lacks instructions of this build; ZK_ALLOC_TEST_LIBRARY names another"
            );
        }
        assert_eq!(output.out, "ok\n", "{}", output.err);
        let reason = if off { "ZK_ALLOC=off" } else { "a tool such as valgrind has replaced malloc" };
        for part in ["Invalid read", "inside a block of size 100 free'd", &format!("not in use, {reason}")] {
            assert!(output.err.contains(part), "{part}: {}", output.err);
        }
    }
}

#[test]
fn zk_alloc_off_loads_the_library_and_serves_nothing() {
    let report =
        errors_of(Arm::Everything.command(program("hello.c")).env("ZK_ALLOC", "off").env("ZK_ALLOC_REPORT", "1"));
    assert!(report.ends_with("): not in use, ZK_ALLOC=off\n") && report.lines().count() == 1, "{report}");
    // The header's functions then behave as they do without the library.
    let header = compiled("header", "header.c", &["-std=c99"]);
    assert_ok(Arm::Default.command(header).arg("off").env("ZK_ALLOC", "off"));
}

/// All processes of a tree inherit the same environment, so without coordination, each would print the same warning. Each process reports
/// once, about itself. A process whose arena served nothing does not report, and neither does a forked child.
#[test]
fn only_one_process_of_a_tree_warns_of_a_setting_and_each_reports_once() {
    // Starts children, grandchildren, another shell, and forks that run no program. Each program makes requests that open the arena.
    let script = r#"for n in 1 2 3 4 5 6 7; do "$0"; done; (for n in 1 2; do "$0"; done); (: ; true); true $(true)
        bash --norc -c '"$0"; true' "$0"; true"#;
    let folder = empty_folder("profiles-of-a-tree");
    for (name, value) in [
        ("ZK_ALLOC_MIN_BYTES", "garbage"),
        ("ZK_ALLOC_THP", "perhaps"),
        ("ZK_ALLOC_PROFILE_BYTES", "many"),
        ("ZK_ALLOC_REPORT", "2"),
        // Without a warning, nobody would notice that a misspelt variable has no effect.
        ("ZK_ALLOC_RETAINFOR", "60"),
    ] {
        let Some(mut shell) = bash(script) else { return };
        let output = outcome_of(shell.env("ZK_ALLOC_REPORT", "1").env("ZK_ALLOC_PROFILE", &folder).env(name, value));
        assert_eq!(output.out, "ok\n".repeat(10), "{}", output.err);
        let count = |what: &str| output.err.lines().filter(|line| line.contains(what)).count();
        // The inner shell reports only if it opened the arena.
        let (programs, shells) = (count("report of hello"), count("report of bash"));
        let is_asked = name != "ZK_ALLOC_REPORT";
        assert_eq!((programs == 10, (1..=2).contains(&shells)), (is_asked, is_asked), "{name}: {}", output.err);
        assert_eq!((count(name), output.err.lines().count()), (1, 1 + programs + shells), "{name}: {}", output.err);
    }
}

/// A parent that was started with another value has not warned about this value.
#[test]
fn process_warns_of_a_value_that_its_parent_was_not_started_with() {
    let script = r#""$0"; ZK_ALLOC_MIN_BYTES=garbage+ "$0"; ZK_ALLOC_MIN_BYTES=1 "$0""#;
    let Some(mut shell) = bash(script) else { return };
    let output = outcome_of(shell.env("ZK_ALLOC_MIN_BYTES", "garbage"));
    assert_eq!(output.out, "ok\nok\nok\n");
    let values: Vec<_> = output.err.lines().filter_map(|line| line.split('"').nth(1)).collect();
    assert_eq!(values, ["garbage", "garbage+"], "{}", output.err);
}

/// A program with only small requests opens the arena when their total size is large enough. A program with few requests does not open it.
#[test]
fn small_requests_open_the_arena_by_their_sum() {
    let program = program("hello.c");
    for (count, is_served) in [("1000", false), ("200000", true)] {
        let report = report_of(&program, &[count]);
        assert_eq!(!report.contains("served 0 requests"), is_served, "{report}");
    }
}

/// The coreutils close standard error before they exit, so their reports need a file.
#[test]
fn report_goes_to_a_file_too() {
    let file = empty_folder("report").join("report");
    for lines in 1..=2 {
        assert!(outcome_of(Arm::Everything.command("ls").arg("/").env("ZK_ALLOC_REPORT", &file)).ok);
        let text = std::fs::read_to_string(&file).expect("the report's file");
        assert_eq!(text.matches("zk-alloc: report of ls").count(), lines, "{text}");
        assert!(text.lines().all(|line| line.contains("served")), "{text}");
    }
    // If the report file can't be opened, the report must not be lost.
    let output =
        outcome_of(Arm::Everything.command("bash").args(["-c", ":"]).env("ZK_ALLOC_REPORT", file.join("file")));
    assert!(output.err.contains("report of bash"), "{}", output.err);
}

/// Without the variable, nothing is sampled and no file is made.
#[test]
fn process_writes_its_call_sites_at_exit_if_it_is_asked_to() {
    let folder = empty_folder("profile-of-a-process");
    for (value, made) in [("", 0), ("0", 0), ("made", 1)] {
        let mut command = Arm::Default.command(program("profile.c"));
        command.env("ZK_ALLOC_PROFILE", value).env("ZK_ALLOC_PROFILE_BYTES", "64K");
        assert_ok(command.current_dir(&folder));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), made, "{value:?}");
    }
    let files: Vec<_> = std::fs::read_dir(folder.join("made")).expect("the folder was made").collect();
    assert_eq!(files.len(), 1);
    let path = files[0].as_ref().unwrap().path();
    assert!(std::fs::read_to_string(&path).unwrap().contains("\nmean_bytes 65536\n"));
    let profile = Profile::read(path).expect("a raw profile");
    assert_eq!(profile.missed(), 0);
    let bytes = |value, function: &str| {
        let folded = profile.folded(value);
        let lines = folded.lines().filter(|line| line.contains(&format!("main;{function} ")));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>()
    };
    let (three, eight) = (3 << 20, 8 << 20);
    assert_eq!(bytes(Value::InuseSpace, "hold_eight"), eight, "{}", profile.folded(Value::AllocSpace));
    assert_eq!(bytes(Value::InuseSpace, "hold_three"), 0);
    assert_eq!((bytes(Value::PeakSpace, "hold_eight"), bytes(Value::PeakSpace, "hold_three")), (eight, three));
    assert_eq!(bytes(Value::AllocSpace, "hold_three"), three + (1 << 20));
}

/// A signal makes a service write a profile while it runs.
#[test]
fn a_running_process_writes_its_call_sites_at_each_signal() {
    let folder = empty_folder("profile-at-a-signal");
    let mut command = Arm::Default.command(program("profile.c"));
    assert_ok(command.arg(&folder).env("ZK_ALLOC_PROFILE", &folder).env("ZK_ALLOC_PROFILE_SIGNAL", "USR2"));
    let files = std::fs::read_dir(&folder).expect("the folder was made").map(|file| file.unwrap().path());
    let (at_exit, at_signal): (Vec<_>, Vec<_>) =
        files.partition(|file| !file.file_stem().unwrap().to_str().unwrap().contains('.'));
    assert_eq!((at_exit.len(), at_signal.len()), (1, 2));
    for file in at_signal {
        let folded = Profile::read(file).expect("a raw profile").folded(Value::InuseSpace);
        assert!(folded.contains("hold_eight") && !folded.contains("hold_three"), "{folded}");
    }
}

/// If a stack walk inside `malloc` called dlsym(3), it would wait for the lock that `dlopen` holds.
#[test]
fn a_sample_neither_waits_for_the_loader_nor_changes_its_error() {
    let library = library_of("dlopen", "dlopen.c");
    let folder = empty_folder("profile-walk");
    let mut command = Arm::Default.command(program("dlopen.c"));
    assert_ok(command.arg("sample").arg(library).env("ZK_ALLOC_PROFILE", &folder));
    assert_eq!(std::fs::read_dir(&folder).expect("the folder was made").count(), 1);
}
