//! A warning names an invalid setting once, with the default that replaces it. The program runs on. Messages go to the file that was
//! standard error when the process began, and to no other file (hazard 35).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::request;
use crate::support::blocks::Block;
use crate::support::{Ended, child, child_as};
use zk_alloc::{ZkAllocator, min_arena_bytes, phase, stats, thread_capacity_bytes};

static ALLOC: ZkAllocator = ZkAllocator;

const NAMES: [&str; 6] = [
    "ZK_ALLOC_SLAB_GB",
    "ZK_ALLOC_MIN_BYTES",
    "ZK_ALLOC_RETAIN_BYTES",
    "ZK_ALLOC_MAX_BYTES",
    "ZK_ALLOC_BACKGROUND",
    "ZK_ALLOC_THP",
];

/// Uses the arena first on many threads at once, and prints the settings in force.
fn report() {
    std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| phase(|| request(&ALLOC, 1 << 19)))));
    (0..2).for_each(|_| phase(|| request(&ALLOC, 1 << 20)));
    assert!(stats().run_allocations >= 2, "{}", stats());
    let huge_pages = stats().huge_pages.expect("there is an arena");
    println!("capacity {} threshold {} huge_pages {huge_pages} .", thread_capacity_bytes(), min_arena_bytes());
}

/// Runs [`report`] in a process of its own in which these variables have this value.
#[track_caller]
fn reported(names: &[&str], value: impl AsRef<OsStr>) -> Option<Ended> {
    let set = |command: &mut std::process::Command| _ = command.envs(names.iter().map(|name| (name, &value)));
    let ended = child_as(&[], set, report)?;
    ended.assert_passed();
    Some(ended)
}

/// Settings are read when the first phase begins, in the middle of the program. A typing error must not stop it, must
/// not count as another value, and must be named once, with the default, however long it is. src/config/tests.rs tries more values and all
/// variables.
#[test]
fn a_warning_names_an_invalid_value_and_the_default_used_instead() {
    let not_utf8 = OsString::from_vec(b"4\xFF\xFE96".to_vec());
    let long = "9".repeat(5_000);
    let values = ["garbage", "-1", "99999999999999999999", "", "0x1000", "4096 bytes", &long];
    let without = reported(&[], "");
    for value in values.iter().map(OsStr::new).chain([not_utf8.as_os_str(), OsStr::from_bytes(b"\x1b[2J\n")]) {
        let (Some(ended), Some(without)) = (reported(&NAMES, value), &without) else { continue };
        assert_eq!((without.stderr.as_str(), ended.stderr.lines().count()), ("", NAMES.len()), "{ended:?}");
        assert_eq!(ended.printed("capacity "), without.printed("capacity "), "the defaults hold");
        for name in NAMES {
            let [line] = ended.stderr.lines().filter(|line| line.contains(name)).collect::<Vec<_>>()[..] else {
                panic!("{name}={value:?}: {}", ended.stderr)
            };
            let shown = if value.len() > 1_000 { "\"99999999".to_owned() } else { format!("{value:?}") };
            assert!(line.starts_with(&format!("zk-alloc: {name}={shown}")), "{line}");
            let default = line.rsplit_once("using the default, ").expect("a default").1;
            match name {
                "ZK_ALLOC_MAX_BYTES" => assert_eq!(default, "no limit"),
                "ZK_ALLOC_BACKGROUND" => assert_eq!(default, "0"),
                "ZK_ALLOC_THP" => assert_eq!(default, "auto"),
                "ZK_ALLOC_RETAIN_BYTES" => assert!(default.parse::<usize>().unwrap() > 1 << 20, "{default}"),
                "ZK_ALLOC_SLAB_GB" => {
                    let capacity = ended.printed("capacity ").split(' ').next().expect("a number");
                    let bytes: usize = capacity.parse().expect("a number");
                    assert_eq!(default, (bytes >> 30).to_string(), "whole GiB are shown");
                }
                _ => assert!(ended.stdout.contains(&format!("threshold {default} ")), "{ended:?}"),
            }
        }
    }
}

/// A misspelt variable has no effect, and nothing else would say so. Valid values take effect without a warning.
#[test]
fn valid_values_take_effect_and_misspelt_ones_are_named() {
    let misspelt =
        "zk-alloc: \"ZK_ALLOC_MAX_BYTE\" is set, but there is no such variable; the nearest is ZK_ALLOC_MAX_BYTES\n";
    for (name, value, said, printed) in [
        ("ZK_ALLOC_SLAB_GB", "3", "", "capacity 3221225472 "),
        ("ZK_ALLOC_MIN_BYTES", "64K", "", "threshold 65536 "),
        ("ZK_ALLOC_RETAIN_BYTES", "512M", "", ""),
        ("ZK_ALLOC_BACKGROUND", "1", "", ""),
        ("ZK_ALLOC_THP", "never", "", "huge_pages never "),
        ("ZK_ALLOC", "on", "", ""),
        ("ZK_ALLOC_REPORT", "1", "", ""),
        ("ZK_ALLOC", "of", "zk-alloc: ZK_ALLOC=\"of\" is not on or off; using the default, on\n", ""),
        ("ZK_ALLOC_MAX_BYTE", "1G", misspelt, ""),
        (
            "ZK_ALLOC_RELEASE_SIGNAL",
            "KILL",
            "zk-alloc: ZK_ALLOC_RELEASE_SIGNAL=\"KILL\" is not the name or number of a signal without another meaning \
             (such as USR1); using the default, no signal\n",
            "",
        ),
    ] {
        let Some(ended) = reported(&[name], value) else { continue };
        assert_eq!(ended.stderr, said, "{name}={value}");
        assert!(ended.stdout.contains(printed), "{name}={value}: {ended:?}");
    }
}

/// Tools such as valgrind and ASan see only the requests that reach the backing allocator.
#[test]
fn off_leaves_everything_to_the_backing_allocator() {
    crate::support::without_warnings(&[("ZK_ALLOC", "off")], || {
        phase(|| request(&ALLOC, 1 << 19));
        assert_eq!((zk_alloc::reserve(1 << 20), zk_alloc::release(), zk_alloc::soften()), (0, 0, 0));
        let stats = stats();
        assert_eq!((stats.arena_allocations, stats.overflow_allocations, stats.address_space_bytes), (0, 0, 0));
        assert!(!zk_alloc::is_serving() && min_arena_bytes() > isize::MAX as usize);
    });
}

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

/// If a program closes descriptor 2, the next file that it opens gets that number. Without the first part, the second could not fail.
#[test]
fn no_messages_are_written_to_a_data_file_that_has_the_descriptor_of_standard_error() {
    if let Some(messages) = messages(|| (), || ()) {
        let has = |what| messages.contains(what);
        assert!(has("ZK_ALLOC_THP=\"perhaps\" is not") && has("bytes outlive their phase"), "{messages}");
        assert!(has("8388608 bytes in 1 allocations: ") && messages.lines().count() <= 21, "{messages}");
    }
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
