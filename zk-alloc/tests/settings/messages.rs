//! Messages go to the file that was standard error when the process began, and to no other file (hazard 35).

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::support::blocks::Block;
use crate::support::child;
use zk_alloc::{ZkAllocator, phase};

static ALLOC: ZkAllocator = ZkAllocator;

/// Runs `before` in a process of its own, then opens the arena, which warns of a setting, and lets a traced buffer outlive its phase.
/// Returns what the process wrote to standard error.
#[track_caller]
fn messages(before: impl FnOnce(), after: impl FnOnce()) -> Option<String> {
    let ended = child(&[("ZK_ALLOC_THP", "perhaps"), ("ZK_ALLOC_TRACE_ESCAPED", "1")], || {
        before();
        drop(phase(|| Block::written(&ALLOC, 8 << 20)));
        after();
    })?;
    ended.assert_passed();
    Some(ended.stderr)
}

/// Without this, the next test could not fail.
#[test]
fn settings_and_traces_are_reported() {
    let Some(messages) = messages(|| (), || ()) else { return };
    let has = |what| messages.contains(what);
    assert!(has("ZK_ALLOC_THP=\"perhaps\" is not") && has("bytes outlive their phase"), "{messages}");
    assert!(has("8388608 bytes in 1 allocations: "), "{messages}");
    assert!(messages.lines().count() <= 21, "{messages}");
}

/// If a program closes descriptor 2, the next file that it opens gets that number.
#[test]
fn nothing_is_written_to_a_data_file_that_has_the_descriptor_of_standard_error() {
    let path = std::env::temp_dir().join(format!("zk-alloc-messages-{}", std::process::id()));
    let replace = || {
        // SAFETY: nothing in this process owns the descriptor.
        unsafe { libc::close(libc::STDERR_FILENO) };
        let file = File::create(&path).expect("a file can be made");
        assert_eq!(file.as_raw_fd(), libc::STDERR_FILENO);
        std::mem::forget(file);
    };
    let check = || {
        let written = std::fs::read_to_string(&path).expect("it is text");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(written, "");
    };
    assert_eq!(messages(replace, check).unwrap_or_default(), "");
}

/// Only the file counts, not the descriptors that it had in between.
#[test]
fn messages_go_to_standard_error_again_when_its_descriptor_is_back() {
    let close_and_open = || {
        // SAFETY: nothing in this process owns the descriptor.
        unsafe {
            let kept = libc::dup(libc::STDERR_FILENO);
            assert!(kept >= 0 && libc::close(libc::STDERR_FILENO) == 0);
            assert_eq!(libc::dup2(kept, libc::STDERR_FILENO), libc::STDERR_FILENO);
        }
    };
    let messages = messages(close_and_open, || ());
    assert!(messages.is_none_or(|messages| messages.contains("ZK_ALLOC_THP=\"perhaps\" is not")));
}
