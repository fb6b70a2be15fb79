//! Tests the library under process limits, the size of core files, and idle processes. The resident memory of an idle process follows the
//! peak live size of the last few seconds, even without phases.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code, reason = "asks for the page faults of a child")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{ARMS, Arm, assert_ok, errors_of, has, library_of, outcome_of, program};

const MIB: u64 = 1 << 20;

/// Like [`assert_ok`](support::assert_ok), but the library may print one line with the error that the system returned when it refused
/// memory.
fn assert_says_ok(command: &mut Command, error: &str) {
    let errors = errors_of(command);
    let is_expected = |line: &str| line.starts_with("zk-alloc: the system refused") && line.contains(error);
    assert!(errors.lines().count() <= 1 && errors.lines().all(is_expected), "{command:?}: {errors}");
}

/// The limit counts reserved addresses, even unused ones. If the library reserved its whole range, a limit would leave no addresses for
/// threads and libraries.
#[test]
fn a_limit_on_address_space_leaves_room_for_the_program_whenever_it_is_set() {
    let program = program("limits.c");
    let library = library_of("plain", "dlopen.c");
    for arm in ARMS {
        for (when, limit) in [("late", ""), ("early", "ulimit -v 4194304; ")] {
            let mut command = arm.command("sh");
            command.args(["-c", &format!(r#"{limit}exec "$0" "$@""#)]);
            assert_says_ok(command.arg(&program).args(["address space", when]).arg(&library), "errno 12");
        }
    }
}

/// With a hard limit, a program's requests fail once the limit is reached. On a signal, a service returns its free memory.
#[test]
fn requests_beyond_a_hard_limit_fail_and_a_signal_returns_free_memory() {
    let program = program("limits.c");
    for arm in [Arm::Default, Arm::Everything] {
        let limit = [("ZK_ALLOC_MAX_BYTES", "64M"), ("ZK_ALLOC_MAX_HARD", "1")];
        assert_ok(arm.command(&program).arg("hard limit").envs(limit));
        assert_ok(arm.command(&program).arg("release signal").env("ZK_ALLOC_RELEASE_SIGNAL", "USR1"));
    }
}

/// Scripts start thousands of small commands, which inherit the library and do not need it.
#[test]
fn a_small_command_pays_few_page_faults_for_the_library() {
    if !has("true") {
        return;
    }
    let faults = |arm: Arm| -> i64 {
        let once = |_| {
            #[expect(clippy::zombie_processes, reason = "wait4 is called below, for the page faults")]
            let child = arm.command("true").spawn().expect("a process");
            // SAFETY: an `rusage` of zeroes is valid.
            let (mut status, mut usage) = (0, unsafe { std::mem::zeroed::<libc::rusage>() });
            // SAFETY: `status` and `usage` are valid for writes.
            let waited = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
            assert!(waited > 0 && status == 0, "{waited} {status}");
            usage.ru_minflt
        };
        let mut all: Vec<_> = (0..15).map(once).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let (without, with) = (faults(Arm::Without), faults(Arm::Default));
    println!("{with} page faults with the library, {without} without");
    // A library that is linked without optimisation has more pages with addresses that the loader must relocate.
    let most = if cfg!(debug_assertions) { 60 } else { 28 };
    assert!(with - without <= most, "{with} page faults, {without} without the library");
}

/// The library does not reserve the addresses that it will map next, so other code may map them first.
#[test]
fn foreign_mappings_in_the_address_range_of_the_library_keep_their_contents() {
    let program = program("limits.c");
    for arm in ARMS {
        assert_says_ok(arm.command(&program).arg("foreign mappings"), "errno 17");
    }
}

/// A debugger's core file contains every page of each mapping that is not excluded, touched or not. The arena's tables are large, and most
/// of their pages are untouched.
#[test]
fn a_core_file_is_little_larger_than_what_is_resident() {
    for arm in ARMS {
        // The program waits until its input ends.
        let mut command = arm.command(program("limits.c"));
        let mut child = command.arg("waiting").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("it says when it waits");
        assert_eq!(line, "ok\n");
        let id = child.id().to_string();
        let (mut rss, mut dumped, mut left_out, mut at) = (0, 0, 0, 0);
        for line in std::fs::read_to_string(format!("/proc/{id}/smaps")).expect("Linux has it").lines() {
            let (field, value) = line.split_once(':').unwrap_or_default();
            let bytes = || value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10;
            match field {
                "Size" => at = bytes(),
                "Rss" => rss += bytes(),
                "VmFlags" if value.contains(" dd") => left_out += at,
                "VmFlags" => dumped += at,
                _ => {}
            }
        }
        // The program's live memory peaked at 200 MiB.
        let is_small = arm != Arm::Everything || dumped < 400 * MIB && left_out > 20 * MIB;
        assert!(is_small, "{arm:?}: {dumped} bytes would be dumped, {left_out} are left out");
        if has("gcore") {
            let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-{arm:?}"));
            let core = PathBuf::from(format!("{}.{id}", base.display()));
            // The limit ends gcore before it fills the disk.
            let mut command = Command::new("sh");
            command.args(["-c", r#"ulimit -f 4194304; exec gcore -o "$0" "$1""#]).arg(&base).arg(&id);
            let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("gcore runs");
            let len = std::fs::metadata(&core).map_or(0, |file| file.len());
            let _ = std::fs::remove_file(&core);
            // A container may forbid tracing.
            let is_right = (50 * MIB..rss + 200 * MIB).contains(&len) || !status.success() && len == 0;
            assert!(is_right, "{arm:?}: {rss} bytes are resident, the core file has {len}");
        }
        drop(child.stdin.take());
        assert!(child.wait().expect("a child of ours").success());
    }
}

/// The sandbox allows the system calls of glibc's malloc and threads. Any other call of the library would kill the program, at once or when
/// the arena opens. (glibc's own malloc is killed when a thread frees a lot of memory, because it opens a file in `/proc`.)
#[test]
fn program_survives_a_sandbox_that_kills_on_other_system_calls() {
    let program = program("sandbox.c");
    for arm in [Arm::Default, Arm::Everything] {
        for when in ["late", "early"] {
            for how in ["prctl", "syscall"] {
                assert_ok(arm.command(&program).args([when, how]));
            }
        }
    }
}

/// A stage as the program prints it: its name, page faults, resident MiB, and tasks.
type Stage = (String, [u64; 3]);

/// The peak live size while the program works, and the live size that stays, in MiB.
const MAX_MIB: u64 = 200;
const STAYS_MIB: u64 = 50;

fn stages(arm: Arm, window: &str, seconds: &str, how: &str, background: bool) -> Vec<Stage> {
    let mut command = arm.command(program("idle.c"));
    command.args([&MAX_MIB.to_string(), &STAYS_MIB.to_string(), seconds, how]).env("ZK_ALLOC_RETAIN_FOR", window);
    let output = outcome_of(command.envs(background.then_some(("ZK_ALLOC_BACKGROUND", "1"))));
    assert!(output.ok && output.err.is_empty(), "{:?} {}", output.out, output.err);
    let stage = |line: &str| {
        let (name, numbers) = line.split_once(' ').expect("a name");
        let numbers: Vec<_> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        (name.to_owned(), numbers.try_into().expect("three numbers"))
    };
    output.out.lines().map(stage).collect()
}

/// The memory of the program itself and of glibc's heap, in MiB.
const BESIDE_MIB: u64 = 12;

/// A busy process keeps its pages, and an idle one keeps little more than its live size. Without the background thread, the process makes a
/// few requests while it is idle. The retention window of 2.5 s is longer than the rounds of work, even on a busy machine.
#[test]
fn a_busy_process_keeps_its_peak_and_an_idle_one_its_live_size() {
    let check = |arm: Arm, background: bool| {
        let (seconds, how) = if background { ("4.5", "idle") } else { ("7", "trickle") };
        let stages = stages(arm, "2.5", seconds, how, background);
        for (name, [faults, resident_mib, tasks]) in &stages {
            let (resident_mib, tasks) = (*resident_mib, *tasks);
            // A forked child does not inherit its parent's thread. It starts its own, and stops it before the stage `ended`.
            let has_thread = background && !matches!(&**name, "forked" | "ended");
            let is_right = tasks == 1 + u64::from(has_thread)
                && match &**name {
                    "warm" => *faults < 600 && resident_mib > STAYS_MIB + MAX_MIB * 9 / 10,
                    "idle" | "child" => resident_mib <= STAYS_MIB * 105 / 100 + BESIDE_MIB,
                    // The memory is in use again.
                    "again" => resident_mib > MAX_MIB,
                    _ => true,
                };
            assert!(is_right, "{name}, {arm:?}: six rounds of {MAX_MIB} MiB, {stages:#?}");
        }
        let names: Vec<_> = stages.iter().map(|stage| &*stage.0).collect();
        assert_eq!(names, ["cold", "warm", "idle", "again", "forked", "child", "ended", "idle"]);
    };
    // Starts all runs at once, because they mostly sleep.
    std::thread::scope(|scope| {
        for (arm, background) in ARMS[1..].iter().flat_map(|&arm| [(arm, false), (arm, true)]) {
            scope.spawn(move || check(arm, background));
        }
    });
}

#[test]
fn memory_stays_if_the_setting_keeps_it_for_ever() {
    let stages = stages(Arm::Default, "ever", "1", "trickle", false);
    for (name, [_, resident_mib, tasks]) in &stages {
        // A child does not inherit free memory.
        let is_right = *tasks == 1 && (*resident_mib > MAX_MIB) == (name != "forked");
        assert!(is_right, "{name}: {stages:#?}");
    }
}

/// A small program never opens the arena. Its background thread only sleeps, and must not keep the program from ending.
#[test]
fn background_thread_does_not_keep_a_program_without_an_arena_running() {
    for arm in [Arm::Default, Arm::Everything] {
        assert_ok(arm.command("/bin/echo").arg("ok").env("ZK_ALLOC_BACKGROUND", "1"));
    }
}
