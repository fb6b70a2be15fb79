//! Resident memory follows the peak live size of the last seconds, without any phases.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use std::path::Path;

use support::{ARMS, Arm, assert_ok, compiled, has, outcome_of};

/// A stage, as printed by the program.
#[derive(Debug)]
struct Stage {
    name: String,
    faults: u64,
    resident_mib: u64,
    tasks: u64,
}

/// The peak live size while the program works, and the live size that stays, in MiB.
const MAX_MIB: u64 = 200;
const STAYS_MIB: u64 = 50;

fn stages(program: &Path, arm: Arm, window: &str, seconds: &str, how: &str, background: bool) -> Vec<Stage> {
    let mut command = arm.command(program);
    command.args([&MAX_MIB.to_string(), &STAYS_MIB.to_string(), seconds, how]).env("ZK_ALLOC_RETAIN_FOR", window);
    if background {
        command.env("ZK_ALLOC_BACKGROUND", "1");
    }
    let output = outcome_of(&mut command);
    assert!(output.ok && output.err.is_empty(), "{:?} {}", output.out, output.err);
    let stage = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        Stage { name, faults: number(), resident_mib: number(), tasks: number() }
    };
    output.out.lines().map(stage).collect()
}

/// Memory of the program itself and of glibc's heap, in MiB.
const BESIDE_MIB: u64 = 12;

/// Checks each stage: a busy process keeps its pages, and an idle one keeps little more than its live size.
fn assert_follows(arm: Arm, stages: &[Stage]) {
    let of = |name: &'static str| stages.iter().filter(move |stage| stage.name == name);
    for warm in of("warm") {
        assert!(warm.faults < 600, "six rounds of {MAX_MIB} MiB: {stages:#?}");
        assert!(warm.resident_mib > STAYS_MIB + MAX_MIB * 9 / 10, "{stages:#?}");
    }
    for rested in of("idle").chain(of("child")) {
        assert!(rested.resident_mib <= STAYS_MIB * 105 / 100 + BESIDE_MIB, "{arm:?}: {stages:#?}");
    }
    assert_eq!((of("idle").count(), of("child").count()), (2, 1), "{stages:#?}");
    // The memory is in use again afterwards.
    assert!(of("again").all(|again| again.resident_mib > MAX_MIB), "{stages:#?}");
}

/// Runs both arms at once, because they sleep most of the time.
fn in_arms(of_arm: impl Fn(Arm) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| of_arm(Arm::Default));
        scope.spawn(|| of_arm(Arm::Everything));
    });
}

// The windows are long enough for the rounds even on a busy machine.

#[test]
fn with_the_background_thread_a_busy_process_keeps_its_peak_and_an_idle_one_its_live_size() {
    let Some(program) = compiled("idle", "idle.c", &[]) else { return };
    in_arms(|arm| {
        let stages = stages(&program, arm, "2.5", "4.5", "idle", true);
        assert_follows(arm, &stages);
        // A forked child does not have its parent's thread, and stops its own.
        let expected = |stage: &Stage| if matches!(&*stage.name, "forked" | "ended") { 1 } else { 2 };
        assert!(stages.iter().all(|stage| stage.tasks == expected(stage)), "{stages:#?}");
    });
}

#[test]
fn without_the_thread_a_process_that_asks_for_little_keeps_what_is_alive() {
    let Some(program) = compiled("idle", "idle.c", &[]) else { return };
    in_arms(|arm| {
        let stages = stages(&program, arm, "2.5", "7", "trickle", false);
        assert_follows(arm, &stages);
        assert!(stages.iter().all(|stage| stage.tasks == 1), "there is no thread of ours: {stages:#?}");
    });
}

#[test]
fn what_is_kept_for_ever_stays() {
    let Some(program) = compiled("idle", "idle.c", &[]) else { return };
    let stages = stages(&program, Arm::Default, "ever", "1", "trickle", false);
    assert!(stages.iter().all(|stage| stage.tasks == 1), "{stages:#?}");
    // What is free is not inherited by a child.
    let (own, inherited): (Vec<_>, Vec<_>) = stages.iter().partition(|stage| stage.name != "forked");
    assert!(own.iter().all(|stage| stage.resident_mib > MAX_MIB), "{stages:#?}");
    assert!(inherited.iter().all(|stage| stage.resident_mib < MAX_MIB), "{stages:#?}");
}

/// A small program of a script never opens the arena. The background thread sleeps, and must not keep the program from
/// ending.
#[test]
fn a_program_without_an_arena_ends_though_it_has_the_thread() {
    for arm in [Arm::Default, Arm::Everything] {
        assert_ok(arm.command("/bin/echo").arg("ok").env("ZK_ALLOC_BACKGROUND", "1"));
    }
}

/// Python 3.12 warns of `os.fork()` in a process with more than one thread, and also counts threads of libraries.
#[test]
fn python_forks_without_a_warning() {
    let script = "import os, sys, warnings
if sys.version_info < (3, 12): sys.exit('old')
warnings.simplefilter('always')
for _ in range(3):
    blocks = [bytearray(1 << 20) for _ in range(100)]
    del blocks
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
print('ok')";
    for python in ["python3", "python3.13", "python3.12"].into_iter().filter(|python| has(python)) {
        for arm in ARMS {
            let output = outcome_of(arm.command(python).args(["-c", script]));
            if !output.ok && matches!(&*output.err, "old\n") || output.err.starts_with("pyenv") {
                println!("SKIPPED: {python} is older than 3.12, and does not warn");
                break;
            }
            assert!(output.ok && output.out == "ok\n" && output.err.is_empty(), "{python} {arm:?}: {}", output.err);
        }
    }
}
