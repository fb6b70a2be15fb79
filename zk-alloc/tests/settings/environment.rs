//! A warning names an invalid setting once, with the default that replaces it. The program runs on.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::request;
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

/// Uses the arena, and prints the settings in force.
fn report() {
    phase(|| request(&ALLOC, 1 << 19));
    phase(|| request(&ALLOC, 1 << 20));
    assert!(stats().run_allocations >= 2, "{}", stats());
    let huge_pages = stats().huge_pages.expect("there is an arena");
    println!("thread_capacity {} min_bytes {} huge_pages {huge_pages} .", thread_capacity_bytes(), min_arena_bytes());
}

/// Runs [`report`] in a process of its own with this variable.
#[track_caller]
fn reported(name: &str, value: impl AsRef<OsStr>) -> Option<Ended> {
    let ended = child_as(&[], |command| _ = command.env(name, value), report)?;
    ended.assert_passed();
    Some(ended)
}

/// The number that a process printed behind `what`.
fn told(ended: &Ended, what: &str) -> usize {
    ended.printed(&format!("{what} ")).split(' ').next().expect("a word").parse().expect("a number")
}

/// The default that the warning names.
fn default_in(line: &str) -> &str {
    line.rsplit_once("using the default, ").unwrap_or_else(|| panic!("no default in {line:?}")).1
}

/// Checks that exactly one line was written, that it names the variable, its value and the default, and that the
/// process used that default.
fn assert_named(ended: &Ended, name: &str, value: &OsStr, without: &Ended) {
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{name}={value:?} wrote {lines:?}");
    let named = lines[0].starts_with("zk-alloc: ") && lines[0].contains(name);
    assert!(named && lines[0].contains(&format!("{value:?}")), "{name}={value:?} wrote {lines:?}");
    let default = default_in(lines[0]);
    match name {
        "ZK_ALLOC_SLAB_GB" => assert_eq!(default.parse::<usize>().unwrap(), told(ended, "thread_capacity") >> 30),
        "ZK_ALLOC_MIN_BYTES" => assert_eq!(default.parse::<usize>().unwrap(), told(ended, "min_bytes")),
        "ZK_ALLOC_RETAIN_BYTES" => assert!(default.parse::<usize>().unwrap() > 1 << 20, "{default}"),
        "ZK_ALLOC_MAX_BYTES" => assert_eq!(default, "no limit"),
        "ZK_ALLOC_BACKGROUND" => assert_eq!(default, "0"),
        _ => assert_eq!(default, "auto"),
    }
    for what in ["thread_capacity", "min_bytes"] {
        assert_eq!(told(ended, what), told(without, what), "{name}={value:?}");
    }
}

/// Settings are read when the first phase begins, in the middle of the program. A typing error must not stop it, must
/// not count as another value, and must be reported.
#[test]
fn a_warning_names_an_invalid_value_and_the_default_used_instead() {
    let without = child(&[], report);
    if let Some(without) = &without {
        without.assert_passed();
        assert_eq!(without.stderr, "");
    }
    let not_utf8 = OsString::from_vec(b"4\xFF\xFE96".to_vec());
    let values = ["garbage", "-1", "99999999999999999999", "18446744073709551615T", "", "1.5", "0x1000", "4096 bytes"];
    for name in NAMES {
        for value in values.iter().map(OsStr::new).chain([not_utf8.as_os_str(), OsStr::from_bytes(b"\x1b[2J\n")]) {
            if let (Some(ended), Some(without)) = (reported(name, value), &without) {
                assert_named(&ended, name, value, without);
            }
        }
    }
}

/// The line is built in a buffer of fixed length, because nothing may be allocated here. A long value must not push out
/// the name and the default.
#[test]
fn a_value_longer_than_the_line_still_leaves_room_for_name_and_default() {
    let value = "9".repeat(5_000);
    for name in NAMES {
        let Some(ended) = reported(name, &value) else { continue };
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.starts_with("zk-alloc: ") && ended.stderr.ends_with('\n'), "{:?}", ended.stderr);
        assert!(ended.stderr.contains(&format!("{name}=\"99999999")), "{}", ended.stderr);
        assert!(!default_in(&ended.stderr).trim().is_empty());
    }
}

/// One warning per invalid value, even if the first phases begin on many threads at once.
#[test]
fn each_invalid_value_is_named_once() {
    let start = || {
        std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| phase(|| request(&ALLOC, 1 << 19)))));
        report();
    };
    let Some(ended) = child(&NAMES.map(|name| (name, "nonsense")), start) else { return };
    ended.assert_passed();
    assert_eq!(ended.stderr.lines().count(), NAMES.len(), "{}", ended.stderr);
    for name in NAMES {
        assert_eq!(ended.stderr.matches(name).count(), 1, "{}", ended.stderr);
    }
}

/// Valid values are used without a warning.
#[test]
fn valid_values_take_effect_without_a_warning() {
    let told_of = |name, value, what| {
        let ended = reported(name, value)?;
        assert_eq!(ended.stderr, "", "{name}={value}");
        Some(told(&ended, what))
    };
    for (name, value, what, expected) in [
        ("ZK_ALLOC_SLAB_GB", "3", "thread_capacity", 3 << 30),
        ("ZK_ALLOC_MIN_BYTES", "0", "min_bytes", 0),
        ("ZK_ALLOC_MIN_BYTES", "64K", "min_bytes", 64 << 10),
    ] {
        assert!(told_of(name, value, what).is_none_or(|found| found == expected), "{name}={value}");
    }
    for value in ["0", "1", "512M", "1T"] {
        told_of("ZK_ALLOC_RETAIN_BYTES", value, "min_bytes");
    }
    for value in ["0", "1"] {
        told_of("ZK_ALLOC_BACKGROUND", value, "min_bytes");
    }
    for value in ["auto", "always", "never"] {
        let Some(ended) = reported("ZK_ALLOC_THP", value) else { continue };
        assert_eq!(ended.stderr, "", "{value}");
        let is = |word: &str| ended.stdout.contains(&format!(" huge_pages {word} "));
        let as_the_host_allows = is("unavailable") && value != "never" || value == "auto" && is("avoided");
        assert!(is(value) || as_the_host_allows, "{ended:?}");
    }
}

/// Tools such as valgrind and ASan see only the requests that reach the backing allocator.
#[test]
fn off_leaves_everything_to_the_backing_allocator() {
    let check = || {
        phase(|| request(&ALLOC, 1 << 19));
        assert_eq!((zk_alloc::reserve(1 << 20), zk_alloc::release(), zk_alloc::soften()), (0, 0, 0));
        let stats = stats();
        assert_eq!((stats.arena_allocations, stats.overflow_allocations, stats.address_space_bytes), (0, 0, 0));
        assert!(!zk_alloc::is_serving() && min_arena_bytes() > isize::MAX as usize);
    };
    if let Some(ended) = child(&[("ZK_ALLOC", "off")], check) {
        ended.assert_passed();
        assert_eq!(ended.stderr, "");
    }
}

/// A misspelt variable has no effect, and nothing else would say so.
#[test]
fn misspelt_variables_and_values_are_named() {
    for (name, value, said) in [
        ("ZK_ALLOC", "of", "zk-alloc: ZK_ALLOC=\"of\" is not on or off; using the default, on\n"),
        (
            "ZK_ALLOC_MAX_BYTE",
            "1G",
            "zk-alloc: \"ZK_ALLOC_MAX_BYTE\" is set, but there is no such variable; the nearest is ZK_ALLOC_MAX_BYTES\n",
        ),
        (
            "ZK_ALLOC_RELEASE_SIGNAL",
            "KILL",
            "zk-alloc: ZK_ALLOC_RELEASE_SIGNAL=\"KILL\" is not the name or number of a signal without another meaning \
             (such as USR1); using the default, no signal\n",
        ),
        ("ZK_ALLOC", "on", ""),
        ("ZK_ALLOC_REPORT", "1", ""),
    ] {
        let Some(ended) = reported(name, value) else { continue };
        assert_eq!(ended.stderr, said, "{name}={value}");
    }
}
