//! Known traps for libraries that replace `malloc`. Each trap has hung or crashed such a library. Every program also
//! runs without the library, to show that it works at all.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[path = "../../../zk-alloc/tests/support/plugin.rs"]
mod plugin;
mod support;

use std::process::Command;

use support::{
    ARMS, Arm, assert_ok, compiled, compiled_library, compiled_with_library, errors_of, has, in_all_arms, library,
    outcome_of, programs, report_of, text,
};

/// Also with a threshold in the middle of the size classes, and with one that no request reaches.
#[test]
fn each_function_keeps_what_its_manual_page_promises_at_any_threshold() {
    let Some(program) = compiled("functions", "functions.c", &[]) else { return };
    in_all_arms(&program, &[]);
    for threshold in ["1", "1000", "33K", "1M", "8388608T"] {
        assert_ok(Arm::Default.command(&program).env("ZK_ALLOC_MIN_BYTES", threshold));
    }
}

#[test]
fn operators_of_cpp_arrive_aligned_or_not_throwing_or_not() {
    let Some(program) = compiled("operators", "operators.cc", &["-std=c++17", "-Wno-mismatched-new-delete"]) else {
        return;
    };
    in_all_arms(&program, &[]);
    let report = report_of(&program, &[]);
    assert!(served(&report) > 300, "{report}");
}

/// The number of served requests in a report.
fn served(report: &str) -> u64 {
    let number = report.split_once("served ").and_then(|(_, rest)| rest.split_once(' '));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("no report: {report:?}"))
}

#[test]
fn constructors_atexit_handlers_and_destructors_may_allocate() {
    let Some((program, _)) = compiled_with_library("early", "early.c", &[]) else { return };
    in_all_arms(&program, &[]);
}

/// Twenty libraries with thread-local memory make glibc enlarge each thread's table of them.
#[test]
fn tls_set_up_and_thread_destructors_may_allocate_around_a_threads_first_request() {
    let libraries: Vec<_> =
        (0..20).filter_map(|n| compiled_library(&format!("libtls{n}.so"), "tls.cc", &["-std=c++17"])).collect();
    let Some(program) = compiled("tls", "tls.cc", &["-std=c++17"]) else { return };
    let paths: Vec<_> = libraries.iter().map(|path| text(path)).collect();
    in_all_arms(&program, &paths);
}

programs! {
    children_can_allocate_no_matter_what_other_threads_did_at_the_fork: in_all_arms(
        "threads", "threads.c", &[], &["forks"]);
    /// A vforked child runs on its parent's memory, in place of the calling thread, with another process id. At the same
    /// time, `malloc_trim` on another thread claims all caches.
    vforked_children_allocate_while_another_thread_takes_what_threads_keep: in_all_arms(
        "threads", "threads.c", &[], &["vforks", "3"]);
    /// The arena's own structures take some kilobytes, and so do the files of the host that it reads. Neither may lie on
    /// the stack.
    the_first_request_may_come_on_a_thread_with_little_stack: in_all_arms(
        "threads", "threads.c", &[], &["little stack", "thread"]);
    the_first_request_may_come_in_a_handler_with_little_stack: in_all_arms(
        "threads", "threads.c", &[], &["little stack", "handler"]);
    the_environment_may_change_while_the_settings_are_needed: in_all_arms(
        "threads", "threads.c", &[], &["environment"]);
    the_process_ends_with_its_last_thread: in_all_arms("threads", "threads.c", &[], &["last thread"]);
}

/// glibc has 32 keys for which a thread needs no memory. For any other key it calls the library's `calloc`.
#[test]
fn threads_get_caches_after_a_library_used_up_the_first_32_pthread_keys() {
    let Some((program, _)) = compiled_with_library("keys", "keys.c", &[]) else { return };
    for arm in [Arm::Default, Arm::Everything] {
        assert_ok(arm.command(&program).arg("threads"));
        // The best of several runs, because the machine may be busy.
        let best = |setting: &[(&str, &str)]| {
            let pair = || outcome_of(arm.command(&program).arg("pairs").envs(setting.iter().copied())).out;
            (0..3).map(|_| pair().trim().parse::<u64>().expect("a number")).min().expect("three times")
        };
        let (with_keys, without) = (best(&[]), best(&[("NO_KEYS", "1")]));
        println!("{arm:?}: {with_keys} tenths of a nanosecond a pair, {without} without the keys");
        assert!(with_keys <= 2 * without, "{arm:?}: {with_keys} against {without}");
    }
}

/// The plugin's constructor calls `dlopen` on the plugin itself, and reaches the library's `dlopen`.
#[test]
fn a_plugin_with_the_allocator_in_it_is_closed_while_its_threads_live() {
    let Some(program) = compiled("dlopen", "dlopen.c", &[]) else { return };
    for is_resident in [false, true] {
        in_all_arms(&program, &["unload", text(&plugin::plugin(is_resident))]);
    }
}

#[test]
fn a_library_loaded_with_deepbind_frees_what_the_program_allocated() {
    let Some(plugin) = compiled_library("libdlopen.so", "dlopen.c", &[]) else { return };
    let Some(program) = compiled("dlopen", "dlopen.c", &[]) else { return };
    in_all_arms(&program, &["deepbind", text(&plugin)]);
    let report = report_of(&program, &["deepbind", text(&plugin)]);
    assert!(report.contains("RTLD_DEEPBIND left out"), "{report}");
}

/// A small limit leaves no room for the arena's address space; a larger one leaves room for a small arena.
#[test]
fn where_the_system_refuses_the_program_goes_on() {
    let Some(program) = compiled("limits", "limits.c", &[]) else { return };
    for arm in ARMS {
        for limit_mib in ["64", "200"] {
            let errors = errors_of(arm.command(&program).args(["refusals", limit_mib]));
            let warnings = errors.lines().count();
            assert!(warnings <= 2 && errors.lines().all(|line| line.starts_with("zk-alloc: ")), "{arm:?} {errors}");
        }
    }
}

#[test]
fn a_small_process_reserves_nothing() {
    let Some(program) = compiled("limits", "limits.c", &[]) else { return };
    let mib = |arm: Arm| -> Vec<u64> {
        let output = outcome_of(arm.command(&program).arg("reservation"));
        output.out.lines().map(|line| line.parse().expect("a number")).collect()
    };
    let (without, with) = (mib(Arm::Without), mib(Arm::Default));
    assert!(with[0] < without[0] + 16, "{with:?} against {without:?}");
    assert!(with[1] > without[1] + 64, "the arena was not reserved: {with:?} against {without:?}");
}

/// A shell, the programs that it starts, and a child that it forks. Each process reports once, about itself, and prints
/// nothing if nothing happened.
#[test]
fn processes_that_inherit_the_environment_print_nothing_twice() {
    let (Some(program), true) = (compiled("hello", "hello.c", &[]), has("bash")) else { return };
    let script = r#""$0"; ("$0"; true); echo $(true); "$0"; true"#;
    let mut command = Arm::Default.command("bash");
    command.args(["--norc", "-c", script]).arg(&program).env("ZK_ALLOC_REPORT", "1").env("ZK_ALLOC_THP", "perhaps");
    let output = outcome_of(&mut command);
    assert_eq!(output.out, "ok\nok\n\nok\n");
    let of = |what: &str| output.err.lines().filter(|line| line.contains(what)).count();
    assert_eq!(of("report of hello"), 3, "{}", output.err);
    assert_eq!(of("report of bash"), 1, "{}", output.err);
    assert_eq!(of("ZK_ALLOC_THP"), 1, "{}", output.err);
    assert_eq!(output.err.lines().count(), 5, "{}", output.err);
}

#[test]
fn a_program_with_its_own_allocator_keeps_it_and_the_report_says_so() {
    let Some(program) = compiled("own_malloc", "own_malloc.c", &["-Wno-unused-result"]) else { return };
    in_all_arms(&program, &[]);
    let report = report_of(&program, &[]);
    let not_in_use = report.contains("report of own_malloc") && report.contains("not in use, malloc is that of");
    assert!(not_in_use && report.trim_end().ends_with("own_malloc"), "{report}");
}

#[test]
fn what_the_header_declares_is_weak_and_works_where_the_library_is() {
    for (output, language) in [("header", "-std=c99"), ("header_cpp", "-std=c++17")] {
        let Some(program) = compiled(output, "header.c", &[language]) else { return };
        assert_ok(Arm::Without.command(&program).arg("alone"));
        assert_ok(Arm::Default.command(&program).arg("with"));
        assert_ok(Arm::Everything.command(&program).arg("with"));
    }
}

/// A program that is not position-independent has its own address for `malloc`, which leads to the library's.
#[test]
fn a_program_at_a_fixed_address_is_no_allocator() {
    let Some(program) = compiled("functions_fixed", "functions.c", &["-no-pie", "-fno-pie"]) else { return };
    in_all_arms(&program, &[]);
    let report = report_of(&program, &[]);
    assert!(served(&report) > 0, "{report}");
}

#[test]
fn a_static_program_runs_without_the_library_and_prints_no_error() {
    let Some(program) = compiled("hello_static", "hello.c", &["-static"]) else { return };
    for arm in ARMS {
        assert_ok(arm.command(&program).env("ZK_ALLOC_REPORT", "1"));
    }
}

/// A program with musl's loader, which supports LD_PRELOAD too.
#[test]
fn a_program_of_musl_runs_as_it_does_without() {
    if !has("musl-gcc") {
        return;
    }
    let program = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hello_musl");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/hello.c");
    assert!(outcome_of(Command::new("musl-gcc").arg("-o").args([&program, &source])).ok);
    in_all_arms(&program, &[]);
    let report = errors_of(Arm::Everything.command(&program).env("ZK_ALLOC_REPORT", "1"));
    assert!(report.contains("report of") && report.contains("not in use"), "{report}");
}

#[test]
fn loaded_late_the_library_says_that_it_does_nothing() {
    let Some(program) = compiled("dlopen", "dlopen.c", &[]) else { return };
    let errors = errors_of(Arm::Without.command(program).arg("late").arg(library()));
    assert!(errors.lines().all(|line| line.contains("libzk_alloc.so was loaded too late")), "{errors}");
    assert!(errors.lines().count() >= 1, "nothing was output");
}

#[test]
fn what_is_freed_twice_or_was_never_handed_out_ends_the_program() {
    let Some(program) = compiled("messages", "messages.c", &[]) else { return };
    for (how, line) in [
        ("twice", "free(0x*): no allocation begins there, or it was freed before"),
        ("inside", "free(0x*): no allocation begins there, or it was freed before"),
        ("reallocated", "realloc(0x*): no allocation begins there, or it was freed before"),
        ("misaligned", "free(0x*): no allocation begins there; it is byte 8 of a block of 112 bytes"),
        ("within", "free(0x*): no allocation begins there; it is byte 32 of a block of 112 bytes"),
        ("grown within", "realloc(0x*): no allocation begins there; it is byte 16 of a block of 112 bytes"),
        ("again", "free(0x*): the block of 112 bytes was freed before"),
        ("others between", "free(0x*): the block of 112 bytes was freed before"),
        ("freed, then grown", "realloc(0x*): the block of 112 bytes was freed before"),
        ("slab", "free(0x*): the block of 112 bytes was freed twice"),
    ] {
        let output = outcome_of(Arm::Default.command(&program).args(["invalid", how]));
        let (head, tail) = line.split_once('*').expect("the address");
        let message = output.err.strip_prefix("zk-alloc: ").and_then(|message| message.strip_suffix('\n'));
        let is_one = message.is_some_and(|it| it.starts_with(head) && it.ends_with(tail) && it.lines().count() == 1);
        assert!(!output.ok && output.out.is_empty() && is_one, "{how}: {}", output.err);
    }
    let output = outcome_of(Arm::Default.command(&program).args(["invalid", "usable"]));
    assert!(output.ok && output.out == "went on\n" && output.err.is_empty(), "{}", output.err);
}
