//! Settings from the environment and from the program. The program's value of a setting applies if the environment does not set it, and
//! `stats()` shows the origin of each value. For an invalid value, the allocator writes one warning, which names the value and the default
//! that replaces it, and the program continues. Messages go to the file that was standard error when the process began, and to no other
//! file.
//!
//! The global allocator here is `System`, so each test chooses the first `ZkAllocator` of its process.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "calls allocators by hand, and closes a descriptor that nothing owns")]

mod support;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use support::blocks::{Block, GIB, KIB, MIB};
use support::process::{are_ours, ours};
use support::{Ended, alone, child, child_as, without_warnings};
use zk_alloc::{
    HugePages, HugePagesOutcome, Origin, Retain, Settings, SettingsInForce, ZkAllocator, begin_phase, end_phase,
    min_arena_bytes, phase, reserve, set_retain, stats, stop_background_thread, thread_capacity_bytes,
};

static ALLOC: ZkAllocator = ZkAllocator;

/// Allocates a block, writes to it and frees it.
fn request(allocator: &'static ZkAllocator, size: usize) {
    drop(Block::written(allocator, size));
}

/// Variables that get an invalid value, each with its default. With `None`, [`report`] prints the default, which may depend on the host.
const VARIABLES: [(&str, Option<&str>); 6] = [
    ("ZK_ALLOC_SLAB_GB", None),
    ("ZK_ALLOC_MIN_BYTES", None),
    ("ZK_ALLOC_RETAIN_BYTES", None),
    ("ZK_ALLOC_MAX_BYTES", Some("no limit")),
    ("ZK_ALLOC_BACKGROUND", Some("0")),
    ("ZK_ALLOC_THP", Some("auto")),
];

/// Opens the arena on several threads at once and prints the settings in force.
fn report() {
    std::thread::scope(|scope| (0..8).for_each(|_| _ = scope.spawn(|| phase(|| request(&ALLOC, 1 << 19)))));
    (0..2).for_each(|_| phase(|| request(&ALLOC, 1 << 20)));
    assert!(stats().run_allocations >= 2, "{}", stats());
    let huge_pages = stats().huge_pages.expect("there is an arena");
    println!("capacity {} threshold {} huge_pages {huge_pages} .", thread_capacity_bytes(), min_arena_bytes());
    // The capacity is set and shown in GiB.
    let values = [thread_capacity_bytes() >> 30, min_arena_bytes(), in_force().retain_bytes.value];
    VARIABLES.iter().zip(values).for_each(|((name, _), value)| println!("{name} is {value}"));
}

/// Runs [`report`] in a process of its own, in which each of these variables has this value.
#[track_caller]
fn reported(names: &[&str], value: impl AsRef<OsStr>) -> Option<Ended> {
    let set = |command: &mut std::process::Command| _ = command.envs(names.iter().map(|name| (name, &value)));
    let ended = child_as(&[], set, report)?;
    ended.assert_passed();
    Some(ended)
}

/// Settings are read when the first phase begins, when the program may have been running for long. So an invalid value must not stop the
/// program, and must not be mistaken for another value. One warning must name the default and the value, of which it shows the beginning if
/// it is long. src/config/tests.rs tries more values and all variables.
#[test]
fn a_warning_names_an_invalid_value_and_the_default_used_instead() {
    let not_utf8 = OsString::from_vec(b"4\xFF\xFE96".to_vec());
    let long = "9".repeat(5_000);
    let values = ["garbage", "-1", "99999999999999999999", "", "0x1000", "4096 bytes", &long];
    let without = reported(&[], "");
    for value in values.iter().map(OsStr::new).chain([not_utf8.as_os_str(), OsStr::from_bytes(b"\x1b[2J\n")]) {
        let (Some(ended), Some(without)) = (reported(&VARIABLES.map(|(name, _)| name), value), &without) else {
            continue;
        };
        assert_eq!((without.stderr.as_str(), ended.stderr.lines().count()), ("", VARIABLES.len()), "{ended:?}");
        assert_eq!(ended.printed("capacity "), without.printed("capacity "), "the defaults hold");
        let shown = if value.len() > 1_000 { "\"99999999".to_owned() } else { format!("{value:?}") };
        for (name, default) in VARIABLES {
            let default = default.unwrap_or_else(|| ended.printed(&format!("{name} is ")));
            let [line] = ended.stderr.lines().filter(|line| line.contains(name)).collect::<Vec<_>>()[..] else {
                panic!("{name}={value:?}: {}", ended.stderr)
            };
            assert!(line.starts_with(&format!("zk-alloc: {name}={shown}")), "{line}");
            assert!(line.ends_with(&format!("using the default, {default}")), "{line}");
        }
    }
}

/// Valid values must take effect without a warning. A misspelt variable has no effect, so there must be a warning.
#[test]
fn valid_values_take_effect_and_misspelt_ones_are_named() {
    let misspelt =
        "zk-alloc: \"ZK_ALLOC_MAX_BYTE\" is set, but there is no such variable; the nearest is ZK_ALLOC_MAX_BYTES\n";
    let unusable = "zk-alloc: ZK_ALLOC_RELEASE_SIGNAL=\"KILL\" is not the name or number of a signal without another \
         meaning (such as USR1); using the default, no signal\n";
    for (name, value, stderr, printed) in [
        ("ZK_ALLOC_SLAB_GB", "3", "", "capacity 3221225472 "),
        ("ZK_ALLOC_MIN_BYTES", "64K", "", "threshold 65536 "),
        ("ZK_ALLOC_THP", "never", "", "huge_pages never "),
        ("ZK_ALLOC_REPORT", "1", "", ""),
        ("ZK_ALLOC", "of", "zk-alloc: ZK_ALLOC=\"of\" is not on or off; using the default, on\n", ""),
        ("ZK_ALLOC_MAX_BYTE", "1G", misspelt, ""),
        ("ZK_ALLOC_RELEASE_SIGNAL", "KILL", unusable, ""),
    ] {
        let Some(ended) = reported(&[name], value) else { continue };
        assert_eq!(ended.stderr, stderr, "{name}={value}");
        assert!(ended.stdout.contains(printed), "{name}={value}: {ended:?}");
    }
}

/// `ZK_ALLOC=off` is for tools such as valgrind and ASan, which see only the requests that reach the backing allocator.
#[test]
fn off_leaves_everything_to_the_backing_allocator() {
    without_warnings(&[("ZK_ALLOC", "off")], || {
        phase(|| request(&ALLOC, 1 << 19));
        assert_eq!((zk_alloc::reserve(1 << 20), zk_alloc::release(), zk_alloc::soften()), (0, 0, 0));
        let stats = stats();
        assert_eq!((stats.arena_allocations, stats.overflow_allocations, stats.address_space_bytes), (0, 0, 0));
        assert!(!zk_alloc::is_serving() && min_arena_bytes() > isize::MAX as usize);
    });
}

/// In a process of its own, runs `before`, opens the arena, which warns about a setting, lets a traced buffer outlive its phase, and runs
/// `after`. Returns what the process wrote to standard error.
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

/// If a program closes descriptor 2, the next file that it opens gets that number, and must not get the messages. The first process closes
/// descriptor 2 and then restores it, so standard error gets the messages. The second opens a data file in its place, which must stay
/// empty.
#[test]
fn messages_are_written_to_standard_error_and_to_no_data_file_that_has_its_descriptor() {
    let close_and_open = || {
        // SAFETY: nothing in this process owns the descriptor.
        unsafe {
            let kept = libc::dup(libc::STDERR_FILENO);
            assert!(kept >= 0 && libc::close(libc::STDERR_FILENO) == 0);
            assert_eq!(libc::dup2(kept, libc::STDERR_FILENO), libc::STDERR_FILENO);
        }
    };
    if let Some(messages) = messages(close_and_open, || ()) {
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

fn in_force() -> SettingsInForce {
    stats().settings.expect("there is an arena")
}

/// Returns the number of bytes that the arena served while `f` ran, and the number that the backing allocator served in its place.
fn served(f: impl FnOnce()) -> (u64, u64) {
    let before = stats();
    f();
    let after = stats();
    (after.arena_bytes - before.arena_bytes, after.overflow_bytes - before.overflow_bytes)
}

static BY_DEFAULT: ZkAllocator = ZkAllocator::resident();

/// Without any settings, the origin of every value must be the default, even if `reserve` opens the arena before any `ZkAllocator` is used.
#[test]
fn without_settings_every_value_is_reported_as_the_default() {
    for open in [|| request(&BY_DEFAULT, MIB), || assert!(reserve(MIB) >= MIB)] {
        without_warnings(&[], || {
            assert_eq!(stats().settings, None, "there is no arena yet");
            open();
            assert_eq!(in_force().to_string(), "all defaults");
            assert_eq!(in_force().min_bytes.origin, Origin::Default);
            assert!(stats().to_string().ends_with("settings: all defaults"), "{}", stats());
        });
    }
}

static RETAINS_NOTHING: ZkAllocator = ZkAllocator.settings(Settings::new().retain_bytes(0));

static TRACED: ZkAllocator = ZkAllocator.settings(Settings::new().trace_escaped(true));

#[test]
fn the_program_may_trace_escapes_and_the_environment_may_forbid_it() {
    let escape = || {
        begin_phase();
        std::mem::forget(Block::untouched(&TRACED, MIB, 8));
        end_phase();
    };
    let told = |ended: &Ended| {
        ended.stderr.contains("1048576 bytes in 1 allocations: ") && ended.stderr.contains(", called by ")
    };
    assert!(child(&[], escape).is_none_or(|ended| told(&ended)));
    if let Some(forbidden) = child(&[("ZK_ALLOC_TRACE_ESCAPED", "0")], escape) {
        forbidden.assert_passed();
        assert!(!told(&forbidden), "{forbidden:?}");
    }
}

const ALL: Settings = Settings::new()
    .min_bytes(KIB)
    .thread_capacity_bytes(3 * GIB)
    .retain_bytes(2 * MIB)
    .retain_for(Duration::from_millis(500))
    .max_bytes(64 * MIB)
    .huge_pages(HugePages::Never)
    .lazy_zero_bytes(MIB)
    .background_thread(true)
    .trace_escaped(true);

static OF_ALL: ZkAllocator = ZkAllocator::resident().settings(ALL);
const OF_ALL_IN_FORCE: &str = "ZK_ALLOC_MIN_BYTES=1024 (program), ZK_ALLOC_SLAB_GB=3 (program), \
    ZK_ALLOC_RETAIN_BYTES=2097152 (program), ZK_ALLOC_RETAIN_FOR=0.5 (program), ZK_ALLOC_MAX_BYTES=67108864 (program), \
    ZK_ALLOC_THP=never (program), ZK_ALLOC_LAZY_ZERO_BYTES=1048576 (program), ZK_ALLOC_BACKGROUND=1 (program), \
    ZK_ALLOC_TRACE_ESCAPED=1 (program)";

/// Operators know the host, so an environment variable overrides the same setting of the program, but no other. src/config/tests.rs tries
/// each variable, and checks which setting applies if a variable is invalid.
#[test]
fn settings_of_the_program_take_effect_unless_environment_variables_override_them() {
    without_warnings(&[], || {
        // The threshold applies to every request, including the first.
        assert_eq!(min_arena_bytes(), 0, "no allocator has brought its settings yet");
        assert_eq!(served(|| request(&OF_ALL, KIB - 1)), (0, 0));
        assert_eq!(served(|| request(&OF_ALL, KIB)), (KIB as u64, 0));
        assert_eq!(served(|| request(&OF_ALL, 100 * MIB)), (0, 100 * MIB as u64));
        assert_eq!(thread_capacity_bytes(), 3 * GIB);
        let threads = std::thread::available_parallelism().expect("a number").get() + 4;
        let zone_bytes = (3 * GIB * threads / 4).next_power_of_two();
        assert_eq!(stats().address_space_bytes, 2 * zone_bytes);
        assert_eq!(stats().huge_pages, Some(HugePagesOutcome::Never));
        assert_eq!(in_force().to_string(), OF_ALL_IN_FORCE);
    });
    without_warnings(&[("ZK_ALLOC_MIN_BYTES", "2K"), ("ZK_ALLOC_SLAB_GB", "5"), ("ZK_ALLOC_THP", "auto")], || {
        request(&OF_ALL, MIB);
        assert_eq!((min_arena_bytes(), thread_capacity_bytes()), (2 * KIB, 5 * GIB));
        let expected = OF_ALL_IN_FORCE.replace("MIN_BYTES=1024 (program)", "MIN_BYTES=2048 (environment)");
        let expected = expected.replace("GB=3 (program)", "GB=5 (environment)");
        assert_eq!(in_force().to_string(), expected.replace("THP=never (program)", "THP=auto (environment)"));
    });
}

static WITH_THREAD: ZkAllocator = ZkAllocator::resident().settings(Settings::new().background_thread(true));

/// In a program without phases, the first request starts the background thread. The setting starts it only once, so a thread that the
/// program has stopped stays stopped.
#[test]
fn the_first_request_starts_the_background_thread_unless_the_environment_forbids_it() {
    for (settings, count, expected) in [
        (&[][..], 1, "ZK_ALLOC_BACKGROUND=1 (program)"),
        (&[("ZK_ALLOC_BACKGROUND", "0")], 0, "ZK_ALLOC_BACKGROUND=0 (environment)"),
    ] {
        without_warnings(settings, || {
            request(&WITH_THREAD, MIB);
            assert!(are_ours(count), "{:?}", ours());
            stop_background_thread();
            phase(|| request(&WITH_THREAD, MIB));
            set_retain(Retain::For(Duration::from_millis(100)));
            reserve(MIB);
            assert!(are_ours(0), "{:?}", ours());
            assert_eq!(in_force().to_string(), expected);
        });
    }
}

/// An allocator applies its settings at its first request, so a phase that begins before must not open the arena.
#[test]
fn a_phase_before_the_first_request_opens_no_arena() {
    alone!();
    phase(|| ());
    assert_eq!(stats().address_space_bytes, 0, "no `ZkAllocator` has made a request yet");
    begin_phase();
    assert_eq!(served(|| request(&RETAINS_NOTHING, MIB)), (MIB as u64, 0));
    end_phase();
    assert_eq!(in_force().retain_bytes.origin, Origin::Program);
}

/// All allocators of a process share the arena, so its settings do not change after the first request.
#[test]
fn the_settings_of_the_first_allocator_stay_in_force() {
    alone!();
    // No phase is open, so the arena serves no request of the first allocator, but that allocator's settings must take effect.
    request(&RETAINS_NOTHING, MIB);
    request(&OF_ALL, MIB);
    assert_eq!(in_force().to_string(), "ZK_ALLOC_RETAIN_BYTES=0 (program)");
}

/// Several threads make the first requests at the same time. While one of them applies the settings, the backing allocator serves the
/// others. Afterwards, all settings must be in force.
#[test]
fn settings_are_complete_when_many_threads_make_the_first_request() {
    alone!();
    std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| request(&OF_ALL, MIB)))));
    request(&OF_ALL, MIB);
    assert!(stats().arena_allocations > 0);
    assert_eq!(in_force().to_string(), OF_ALL_IN_FORCE);
}
