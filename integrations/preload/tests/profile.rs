//! `ZK_ALLOC_PROFILE`: a process leaves its call sites, and the names are looked up afterwards.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use support::{Arm, assert_ok, compiled, compiled_library, empty_folder, errors_of};
use zk_alloc_profile::{Profile, Value};

/// Each function keeps its frame.
const SIBLINGS: [&str; 1] = ["-fno-optimize-sibling-calls"];

#[test]
fn a_process_leaves_its_call_sites() {
    let Some(program) = compiled("profile", "profile.c", &SIBLINGS) else { return };
    let folder = empty_folder("profile-of-a-process").join("made");
    assert_ok(Arm::Default.command(&program).env("ZK_ALLOC_PROFILE", &folder));
    let files: Vec<_> = std::fs::read_dir(&folder).expect("the folder was made").collect();
    assert_eq!(files.len(), 1);
    let profile = Profile::read(files[0].as_ref().unwrap().path()).expect("a raw profile");
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

/// A service can be profiled without being stopped.
#[test]
fn a_running_process_writes_its_call_sites_at_each_signal() {
    let Some(program) = compiled("profile", "profile.c", &SIBLINGS) else { return };
    let folder = empty_folder("profile-at-a-signal");
    let mut command = Arm::Default.command(&program);
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

/// Without the variable, nothing is sampled and no file is made.
#[test]
fn a_process_without_the_variable_leaves_nothing() {
    let Some(program) = compiled("profile", "profile.c", &SIBLINGS) else { return };
    let folder = empty_folder("profile-off");
    for off in ["", "0"] {
        assert_ok(Arm::Default.command(&program).env("ZK_ALLOC_PROFILE", off).current_dir(&folder));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

/// A walk of the stack within `malloc` that called dlsym(3) would wait for the lock that `dlopen` holds.
#[test]
fn a_sample_neither_waits_for_the_loader_nor_changes_its_error() {
    let Some(library) = compiled_library("libdlopen.so", "dlopen.c", &[]) else { return };
    let Some(program) = compiled("dlopen", "dlopen.c", &[]) else { return };
    let folder = empty_folder("profile-walk");
    assert_ok(Arm::Default.command(&program).arg("sample").arg(library).env("ZK_ALLOC_PROFILE", &folder));
    assert_eq!(std::fs::read_dir(&folder).expect("the folder was made").count(), 1);
}

/// Without a warning, a typing error would change how exact the profile is.
#[test]
fn profile_bytes_takes_units_and_warns_of_bad_values() {
    let Some(program) = compiled("profile", "profile.c", &SIBLINGS) else { return };
    let folder = empty_folder("profile-mean");
    let errors = |mean: &str| {
        errors_of(Arm::Default.command(&program).env("ZK_ALLOC_PROFILE", &folder).env("ZK_ALLOC_PROFILE_BYTES", mean))
    };
    assert_eq!(errors("64K"), "");
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    assert!(std::fs::read_to_string(file).unwrap().contains("\nmean_bytes 65536\n"));
    for wrong in ["many", "0"] {
        let errors = errors(wrong);
        assert!(errors.contains("ZK_ALLOC_PROFILE_BYTES") && errors.contains("524288"), "{errors}");
    }
}
