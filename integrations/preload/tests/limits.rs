//! The library in processes with limits, and in their core files.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code, reason = "sets a limit for a child")]

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{ARMS, Arm, assert_ok, compiled, compiled_library, errors_of, has};

const MIB: u64 = 1 << 20;

/// A command whose process starts with a limit.
fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, bytes: u64) -> &mut Command {
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: a valid limit.
        let is_set = unsafe { libc::setrlimit(resource, &raw const limit) } == 0;
        if is_set { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec, one call that neither allocates nor locks.
    unsafe { command.pre_exec(limit) }
}

/// As [`assert_ok`](support::assert_ok), but the library may report once the error that refused it memory.
fn assert_says_ok(command: &mut Command, error: &str) {
    let errors = errors_of(command);
    let is_expected = |line: &str| line.starts_with("zk-alloc: the system refused") && line.contains(error);
    assert!(errors.lines().count() <= 1 && errors.lines().all(is_expected), "{command:?}: {errors}");
}

/// The kernel counts reserved addresses, even unused ones. If 197 GB were reserved, a limit would leave none for
/// threads and libraries.
#[test]
fn a_limit_on_address_space_leaves_room_for_the_program_whenever_it_is_set() {
    let Some(program) = compiled("limits", "limits.c", &[]) else { return };
    let Some(library) = compiled_library("libplain.so", "dlopen.c", &[]) else { return };
    for arm in ARMS {
        let command = |when| {
            let mut command = arm.command(&program);
            command.args(["address space", when]).arg(&library);
            command
        };
        assert_says_ok(&mut command("late"), "errno 12");
        assert_says_ok(limited(&mut command("early"), libc::RLIMIT_AS, 4096 * MIB), "errno 12");
    }
}

/// An operator may prefer a program that fails to one that grows, and may tell a service to return its memory.
#[test]
fn requests_beyond_a_hard_limit_fail_and_a_signal_returns_free_memory() {
    let Some(program) = compiled("limits", "limits.c", &[]) else { return };
    for arm in [Arm::Default, Arm::Everything] {
        let limit = [("ZK_ALLOC_MAX_BYTES", "64M"), ("ZK_ALLOC_MAX_HARD", "1")];
        assert_ok(arm.command(&program).arg("hard limit").envs(limit));
        assert_ok(arm.command(&program).arg("release signal").env("ZK_ALLOC_RELEASE_SIGNAL", "USR1"));
    }
}

/// Scripts start thousands of small commands, which inherit the library and need nothing of it.
#[test]
fn a_small_command_pays_few_page_faults_for_the_library() {
    if !has("true") {
        return;
    }
    let faults = |arm: Arm| -> i64 {
        let once = |_| {
            #[expect(clippy::zombie_processes, reason = "wait4 is called below, for the page faults")]
            let child = arm.command("true").spawn().expect("a process");
            let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
            // SAFETY: a child of ours, and places for the answers.
            let usage = unsafe {
                assert!(libc::wait4(child.id() as i32, &raw mut status, 0, usage.as_mut_ptr()) > 0);
                usage.assume_init()
            };
            assert_eq!(status, 0);
            usage.ru_minflt
        };
        let mut all: Vec<_> = (0..15).map(once).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    let (without, with) = (faults(Arm::Without), faults(Arm::Default));
    println!("{with} page faults with the library, {without} without");
    // A library that is linked without optimisation has more pages with addresses in them.
    let most = if cfg!(debug_assertions) { 60 } else { 28 };
    assert!(with - without <= most, "{with} page faults, {without} without the library");
}

/// The library does not reserve the addresses that it will map next, so other code may map them first.
#[test]
fn memory_that_others_map_in_the_room_of_the_library_stays_theirs() {
    let Some(program) = compiled("limits", "limits.c", &[]) else { return };
    for arm in ARMS {
        assert_says_ok(arm.command(&program).arg("foreign mappings"), "errno 17");
    }
}

/// Parses a size such as ` 12 kB` into bytes.
fn bytes_of(figure: &str) -> u64 {
    figure.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// A program that waits until its input ends.
struct Waiting(Child);

impl Waiting {
    fn start(mut command: Command) -> Self {
        let mut child = command.arg("waiting").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("the program says when it waits");
        assert_eq!(line, "ok\n");
        Self(child)
    }

    fn proc_file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).expect("Linux has it")
    }

    fn rss_bytes(&self) -> u64 {
        let status = self.proc_file("status");
        bytes_of(status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the field"))
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("a child of ours").success());
    }
}

/// A debugger's core file contains every page of each mapping that is not excluded, touched or not.
#[test]
fn a_core_file_of_gcore_is_little_larger_than_what_is_resident() {
    let (Some(program), true) = (compiled("limits", "limits.c", &[]), has("gcore")) else { return };
    for arm in ARMS {
        let waiting = Waiting::start(arm.command(&program));
        let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("core-{arm:?}"));
        let core = PathBuf::from(format!("{}.{}", base.display(), waiting.0.id()));
        let mut command = Command::new("gcore");
        command.arg("-o").arg(&base).arg(waiting.0.id().to_string()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ends it before it fills the disk.
        let status = limited(&mut command, libc::RLIMIT_FSIZE, 2048 * MIB).status().expect("gcore runs");
        let (rss, len) = (waiting.rss_bytes(), std::fs::metadata(&core).map_or(0, |file| file.len()));
        let _ = std::fs::remove_file(&core);
        if !status.success() && len == 0 {
            // A container may forbid tracing.
            return eprintln!("SKIPPED: gcore does not work here, so that nothing is shown about it");
        }
        println!("{arm:?}: {} MiB resident, a core file of {} MiB", rss / MIB, len / MIB);
        let is_right = (50 * MIB..rss + 200 * MIB).contains(&len);
        assert!(is_right, "{arm:?}: {rss} bytes are resident, the core file has {len}");
        waiting.end();
    }
}

/// The arena's tables are large, and hardly touched.
#[test]
fn what_is_mapped_and_not_touched_is_left_out_of_core_files() {
    let Some(program) = compiled("limits", "limits.c", &[]) else { return };
    let waiting = Waiting::start(Arm::Everything.command(&program));
    let (mut dumped, mut left_out, mut at) = (0, 0, 0);
    for line in waiting.proc_file("smaps").lines() {
        if let Some(size) = line.strip_prefix("Size:") {
            at = bytes_of(size);
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            *(if flags.split(' ').any(|flag| flag == "dd") { &mut left_out } else { &mut dumped }) += at;
        }
    }
    // 200 MiB were alive at once.
    assert!(dumped < 400 * MIB, "{} MiB would be dumped, of {} MiB", dumped / MIB, waiting.rss_bytes() / MIB);
    assert!(left_out > 20 * MIB, "{} MiB are left out", left_out / MIB);
    waiting.end();
}

/// Programs that give up system calls keep those of glibc's malloc and threads. Any other call of the library kills
/// them, at once or when its arena opens. (glibc itself dies there when a thread frees much memory, because it opens a
/// file of `/proc`.)
#[test]
fn a_sandbox_that_kills_lets_the_library_live() {
    let Some(program) = compiled("sandbox", "sandbox.c", &[]) else { return };
    for arm in [Arm::Default, Arm::Everything] {
        for when in ["late", "early"] {
            for how in ["prctl", "syscall"] {
                assert_ok(arm.command(&program).args([when, how]));
            }
        }
    }
}
