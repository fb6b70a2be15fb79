//! A warning names an invalid setting once, with the default that replaces it. The program runs on.
#![cfg(unix)]

mod support;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use support::{Ended, alone, assert_patterned, is_alone, patterned};
use zk_alloc::{ZkAllocator, min_arena_bytes, phase, stats, thread_capacity_bytes};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const NAMES: [&str; 6] = [
    "ZK_ALLOC_SLAB_GB",
    "ZK_ALLOC_MIN_BYTES",
    "ZK_ALLOC_RETAIN_BYTES",
    "ZK_ALLOC_MAX_BYTES",
    "ZK_ALLOC_BACKGROUND",
    "ZK_ALLOC_THP",
];

/// Runs in a process of its own: uses the arena, and prints the settings in force.
fn report() {
    let kept = phase(|| patterned(1 << 16, 1));
    phase(|| drop(patterned(1 << 17, 2)));
    assert_patterned(&kept, 1);
    assert!(stats().run_allocations >= 2, "{}", stats());
    let huge_pages = stats().huge_pages.expect("there is an arena");
    println!("thread_capacity {} min_bytes {} huge_pages {huge_pages} .", thread_capacity_bytes(), min_arena_bytes());
}

/// The number that a process printed behind `what`.
fn told(ended: &Ended, what: &str) -> usize {
    let words: Vec<_> = ended.stdout.split_whitespace().collect();
    let at = words.iter().position(|&word| word == what).unwrap_or_else(|| panic!("{what}: {ended:?}"));
    words[at + 1].parse().unwrap()
}

/// The default that the warning names.
fn default_in(line: &str) -> &str {
    line.rsplit_once("using the default, ").unwrap_or_else(|| panic!("no default in {line:?}")).1
}

/// Checks that exactly one line was written, that it names the variable, its value and the default, and that the
/// process used that default.
fn assert_named(ended: &Ended, name: &str, value: &OsStr, without: &Ended) {
    ended.assert_passed(name);
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
fn a_value_that_cannot_be_used_is_named_with_the_default_in_its_place() {
    let test = "a_value_that_cannot_be_used_is_named_with_the_default_in_its_place";
    if is_alone() {
        return report();
    }
    let without = alone(test, &[]);
    without.assert_passed("no settings");
    assert_eq!(without.stderr, "");
    let not_utf8 = OsString::from_vec(b"4\xFF\xFE96".to_vec());
    let values = ["garbage", "-1", "99999999999999999999", "18446744073709551615T", "", "1.5", "0x1000", "4096 bytes"];
    for name in NAMES {
        for value in values.iter().map(OsStr::new).chain([not_utf8.as_os_str(), OsStr::from_bytes(b"\x1b[2J\n")]) {
            assert_named(&alone(test, &[(name, value)]), name, value, &without);
        }
    }
}

/// The line is built in a buffer of fixed length, because nothing may be allocated here. A long value must not push out
/// the name and the default.
#[test]
fn a_value_longer_than_the_line_still_leaves_room_for_name_and_default() {
    let test = "a_value_longer_than_the_line_still_leaves_room_for_name_and_default";
    if is_alone() {
        return report();
    }
    let value = OsString::from("9".repeat(5_000));
    for name in NAMES {
        let ended = alone(test, &[(name, &value)]);
        ended.assert_passed(name);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.starts_with("zk-alloc: ") && ended.stderr.ends_with('\n'), "{:?}", ended.stderr);
        assert!(ended.stderr.contains(&format!("{name}=\"99999999")), "{}", ended.stderr);
        assert!(!default_in(&ended.stderr).trim().is_empty());
    }
}

/// One warning per invalid value, even if the first phases begin on many threads at once.
#[test]
fn several_bad_values_are_named_once_each() {
    let test = "several_bad_values_are_named_once_each";
    if is_alone() {
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| phase(|| drop(patterned(1 << 16, 1)))))));
        return report();
    }
    let ended = alone(test, &NAMES.map(|name| (name, OsStr::new("nonsense"))));
    ended.assert_passed(test);
    assert_eq!(ended.stderr.lines().count(), NAMES.len(), "{}", ended.stderr);
    for name in NAMES {
        assert_eq!(ended.stderr.matches(name).count(), 1, "{}", ended.stderr);
    }
}

/// Valid values are used without a warning.
#[test]
fn values_that_can_be_used_are_taken_without_a_word() {
    let test = "values_that_can_be_used_are_taken_without_a_word";
    if is_alone() {
        return report();
    }
    let with = |name, value: &str| {
        let ended = alone(test, &[(name, OsStr::new(value))]);
        ended.assert_passed(name);
        assert_eq!(ended.stderr, "", "{name}={value}");
        ended
    };
    assert_eq!(told(&with("ZK_ALLOC_SLAB_GB", "3"), "thread_capacity"), 3 << 30);
    assert_eq!(told(&with("ZK_ALLOC_MIN_BYTES", "0"), "min_bytes"), 0);
    assert_eq!(told(&with("ZK_ALLOC_MIN_BYTES", "64K"), "min_bytes"), 64 << 10);
    for value in ["0", "1", "512M", "1T"] {
        with("ZK_ALLOC_RETAIN_BYTES", value);
    }
    for value in ["0", "1"] {
        with("ZK_ALLOC_BACKGROUND", value);
    }
    for value in ["auto", "always", "never"] {
        let told = with("ZK_ALLOC_THP", value).stdout;
        let is = |word: &str| told.contains(&format!(" huge_pages {word} "));
        let as_the_host_allows = is("unavailable") && value != "never" || value == "auto" && is("avoided");
        assert!(is(value) || as_the_host_allows, "{told}");
    }
}

/// Tools such as valgrind and ASan see only the requests that reach the backing allocator.
#[test]
fn off_leaves_everything_to_the_backing_allocator() {
    let test = "off_leaves_everything_to_the_backing_allocator";
    if is_alone() {
        let kept = phase(|| patterned(1 << 16, 1));
        let reserved = zk_alloc::reserve(1 << 20);
        assert_patterned(&kept, 1);
        let stats = stats();
        assert_eq!((reserved, zk_alloc::release(), zk_alloc::soften()), (0, 0, 0));
        assert_eq!((stats.arena_allocations, stats.overflow_allocations, stats.address_space_bytes), (0, 0, 0));
        assert!(!zk_alloc::is_serving() && min_arena_bytes() > isize::MAX as usize);
        return;
    }
    let ended = alone(test, &[("ZK_ALLOC", OsStr::new("off"))]);
    ended.assert_passed(test);
    assert_eq!(ended.stderr, "");
}

/// A misspelt variable has no effect, and nothing else would say so.
#[test]
fn what_can_not_be_used_and_has_no_place_among_the_settings_is_named_too() {
    let test = "what_can_not_be_used_and_has_no_place_among_the_settings_is_named_too";
    if is_alone() {
        return report();
    }
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
        let ended = alone(test, &[(name, OsStr::new(value))]);
        ended.assert_passed(name);
        assert_eq!(ended.stderr, said, "{name}={value}");
    }
}
