//! No phases to mark: what stays resident follows the highest live total of the last seconds, by itself.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use std::path::Path;

use support::{Arm, compiled, said};

/// What the program printed of a stage.
#[derive(Debug)]
struct Stage {
    name: String,
    faults: u64,
    resident_mib: u64,
    tasks: u64,
}

/// The most MiB that are alive while the program works, and those that stay alive.
const MOST_MIB: u64 = 200;
const STAYS_MIB: u64 = 50;

fn stages(program: &Path, arm: Arm, window: &str) -> Vec<Stage> {
    let mut command = arm.command(program);
    command.args([MOST_MIB.to_string(), STAYS_MIB.to_string(), "4.5".into()]).env("ZK_ALLOC_RETAIN_FOR", window);
    let said = said(&mut command);
    assert!(said.ok && said.err.is_empty(), "{:?} {}", said.out, said.err);
    let stage = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().expect("a name").to_owned();
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        Stage { name, faults: number(), resident_mib: number(), tasks: number() }
    };
    said.out.lines().map(stage).collect()
}

/// Bytes of the program itself, and of what glibc keeps, in MiB.
const BESIDE_MIB: u64 = 12;

#[test]
fn a_busy_process_keeps_what_it_needs_and_an_idle_one_what_is_alive() {
    let Some(program) = compiled("comes_down", &["comes_down.c"], &[]) else { return };
    let in_arm = |arm: Arm| {
        // A window that the rounds fit into also on a machine that is busy with other things.
        let stages = stages(&program, arm, "2.5");
        let of = |name: &'static str| stages.iter().filter(move |stage| stage.name == name);
        for warm in of("warm") {
            assert!(warm.faults < 600, "six rounds of {MOST_MIB} MiB: {stages:#?}");
            assert!(warm.resident_mib > STAYS_MIB + MOST_MIB * 9 / 10, "{stages:#?}");
        }
        for idle in of("idle").chain(of("child")) {
            assert!(idle.resident_mib <= STAYS_MIB * 105 / 100 + BESIDE_MIB, "{arm:?}: {stages:#?}");
            assert_eq!(idle.tasks, 1, "an idle process has no task that watches it: {stages:#?}");
        }
        assert_eq!(of("child").count(), 1, "{stages:#?}");
        // It is in use again afterwards.
        assert!(of("again").all(|again| again.resident_mib > MOST_MIB), "{stages:#?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| in_arm(Arm::Default));
        scope.spawn(|| in_arm(Arm::Everything));
    });
}

#[test]
fn what_is_kept_for_ever_stays_without_a_task() {
    let Some(program) = compiled("comes_down_never", &["comes_down.c"], &[]) else { return };
    let stages = stages(&program, Arm::Default, "ever");
    assert!(stages.iter().all(|stage| stage.tasks == 1), "{stages:#?}");
    assert!(stages.iter().all(|stage| stage.resident_mib > MOST_MIB), "{stages:#?}");
}
