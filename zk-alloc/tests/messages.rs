//! Messages go to the file that was standard error when the process began, and to no other file (hazard 35).
#![cfg(unix)]
#![allow(unsafe_code, reason = "closes a descriptor that nothing owns")]

mod support;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;

use support::{alone, assert_patterned, is_alone, patterned};
use zk_alloc::{ZkAllocator, phase};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const SETTINGS: [(&str, &str); 2] = [("ZK_ALLOC_THP", "perhaps"), ("ZK_ALLOC_TRACE_ESCAPED", "1")];

/// Opens the arena, which warns of a setting, and lets a traced buffer outlive its phase.
fn provoke() {
    let kept = phase(|| patterned(1 << 20, 1));
    assert_patterned(&kept, 1);
}

fn alone_with_settings(test: &str) -> support::Ended {
    let ended = alone(test, &SETTINGS.map(|(name, value)| (name, OsStr::new(value))));
    ended.assert_passed(test);
    ended
}

/// Without this, the next test could not fail.
#[test]
fn settings_and_traces_are_reported() {
    let test = "settings_and_traces_are_reported";
    if is_alone() {
        return provoke();
    }
    let ended = alone_with_settings(test);
    let has = |what| ended.stderr.contains(what);
    assert!(has("ZK_ALLOC_THP=\"perhaps\" is not") && has("bytes outlive their phase"), "{ended:?}");
    // The thread that waits for the test may allocate during the phase, and that is traced too.
    assert!(has("1 allocations, 8388608 bytes, made at"), "{ended:?}");
}

/// If a program closes descriptor 2, the next file that it opens gets that number.
#[test]
fn a_data_file_with_the_number_of_standard_error_stays_clean() {
    let test = "a_data_file_with_the_number_of_standard_error_stays_clean";
    if !is_alone() {
        return assert_eq!(alone_with_settings(test).stderr, "");
    }
    let path = std::env::temp_dir().join(format!("zk-alloc-messages-{}", std::process::id()));
    // SAFETY: nothing in this process owns the descriptor.
    unsafe { libc::close(libc::STDERR_FILENO) };
    let file = File::create(&path).expect("a file can be made");
    assert_eq!(file.as_raw_fd(), libc::STDERR_FILENO);
    provoke();
    let written = std::fs::read_to_string(&path).expect("it is text");
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(written, "");
}

/// Only the file counts, not the descriptors that it had in between.
#[test]
fn standard_error_that_comes_back_is_written_to_again() {
    let test = "standard_error_that_comes_back_is_written_to_again";
    if !is_alone() {
        let ended = alone_with_settings(test);
        return assert!(ended.stderr.contains("ZK_ALLOC_THP=\"perhaps\" is not"), "{ended:?}");
    }
    // SAFETY: nothing in this process owns the descriptor.
    unsafe {
        let kept = libc::dup(libc::STDERR_FILENO);
        assert!(kept >= 0 && libc::close(libc::STDERR_FILENO) == 0);
        assert_eq!(libc::dup2(kept, libc::STDERR_FILENO), libc::STDERR_FILENO);
    }
    provoke();
}
