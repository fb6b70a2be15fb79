//! Tests known traps for libraries that replace `malloc`. Each trap has hung or crashed such a library. Every program
//! also runs without the library, to show that it works at all. Some programs bring a second allocator, or parts of
//! one: at any threshold, no memory may cross between the two allocators.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

#[path = "../../../zk-alloc/tests/support/plugin.rs"]
mod plugin;
mod support;

use std::path::Path;
use std::process::Command;

use support::{
    ARMS, Arm, assert_ok, compiled, errors_of, has, in_all_arms, library, library_of, outcome_of, program,
    program_with_library, programs, report_of, text,
};

/// Runs a program in each arm, and at other thresholds. The thresholds include one between the smallest and the largest size class, and
/// one above every request.
fn at_each_threshold(program: &Path, arguments: &[&str]) {
    in_all_arms(program, arguments);
    for threshold in ["1", "1000", "4096", "33K", "1M", "8388608T"] {
        assert_ok(Arm::Default.command(program).args(arguments).env("ZK_ALLOC_MIN_BYTES", threshold));
    }
}

#[test]
fn every_form_of_cpp_new_and_delete_reaches_the_library() {
    let program = program("operators.cc");
    in_all_arms(&program, &[]);
    assert!(served(&program) > 300);
}

/// Returns the number of the program's requests that the library serves.
fn served(program: &Path) -> u64 {
    let report = report_of(program, &[]);
    let number = report.split_once("served ").and_then(|(_, rest)| rest.split_once(' '));
    number.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("no report: {report:?}"))
}

#[test]
fn constructors_atexit_handlers_and_destructors_may_allocate() {
    let (program, _) = program_with_library("early.c");
    in_all_arms(&program, &[]);
}

/// Twenty libraries with thread-local memory make glibc enlarge each thread's table of thread-local blocks.
#[test]
fn tls_set_up_and_thread_destructors_may_allocate_around_a_threads_first_request() {
    let libraries: Vec<_> = (0..20).map(|n| library_of(&format!("tls{n}"), "tls.cc")).collect();
    let paths: Vec<_> = libraries.iter().map(|path| text(path)).collect();
    in_all_arms(&program("tls.cc"), &paths);
}

programs! {
    each_function_keeps_what_its_manual_page_promises_at_any_threshold: at_each_threshold("functions.c", &[]);
    memory_may_be_freed_by_the_second_names_of_glibc: at_each_threshold("functions.c", &["second names"]);
    /// By the C++ standard, each form of `operator new` and `operator delete` calls the simpler one, which a program may
    /// define.
    a_program_with_its_own_operator_new_keeps_it_for_all_forms: at_each_threshold("own_new.cc", &[]);
    new_without_memory_calls_the_handler_and_throws: at_each_threshold("no_memory.cc", &[]);
    children_can_allocate_no_matter_what_other_threads_did_at_the_fork: in_all_arms(
        "threads.c", &["forks"]);
    /// A vforked child runs on its parent's memory, in place of the calling thread, with another process id. At the same
    /// time, `malloc_trim` on another thread claims all caches.
    vforked_children_allocate_while_another_thread_empties_thread_caches: in_all_arms(
        "threads.c", &["vforks", "3"]);
    /// The arena's own structures take several kilobytes, and so do the host files that it reads. Neither may be on the
    /// stack.
    the_first_request_may_come_on_a_thread_with_little_stack: in_all_arms(
        "threads.c", &["little stack", "thread"]);
    the_first_request_may_come_in_a_handler_with_little_stack: in_all_arms(
        "threads.c", &["little stack", "handler"]);
    the_environment_may_change_while_the_settings_are_needed: in_all_arms(
        "threads.c", &["environment"]);
    the_process_ends_with_its_last_thread: in_all_arms("threads.c", &["last thread"]);
}

/// glibc has 32 keys for which a thread needs no memory. For any other key it calls the library's `calloc`.
#[test]
fn threads_get_caches_after_a_library_used_up_the_first_32_pthread_keys() {
    let (program, _) = program_with_library("keys.c");
    for arm in [Arm::Default, Arm::Everything] {
        assert_ok(&mut arm.command(&program));
    }
}

/// The plugin's constructor calls `dlopen` on the plugin itself, and reaches the library's `dlopen`.
#[test]
fn a_plugin_with_the_allocator_in_it_is_closed_while_its_threads_live() {
    for is_resident in [false, true] {
        in_all_arms(&program("dlopen.c"), &["unload", text(&plugin::plugin(is_resident))]);
    }
}

#[test]
fn a_library_loaded_with_deepbind_frees_what_the_program_allocated() {
    let plugin = library_of("dlopen", "dlopen.c");
    let program = program("dlopen.c");
    in_all_arms(&program, &["deepbind", text(&plugin)]);
    let report = report_of(&program, &["deepbind", text(&plugin)]);
    assert!(report.contains("RTLD_DEEPBIND left out"), "{report}");
}

/// A small limit leaves no room for the arena's address space; a larger one leaves room for a small arena.
#[test]
fn program_goes_on_when_the_system_refuses_memory() {
    let program = program("limits.c");
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
    let program = program("limits.c");
    let mib = |arm: Arm| -> Vec<u64> {
        let output = outcome_of(arm.command(&program).arg("reservation"));
        output.out.lines().map(|line| line.parse().expect("a number")).collect()
    };
    let (without, with) = (mib(Arm::Without), mib(Arm::Default));
    assert!(with[0] < without[0] + 16, "{with:?} against {without:?}");
    assert!(with[1] > without[1] + 64, "the arena was not reserved: {with:?} against {without:?}");
}

#[test]
fn a_program_with_its_own_allocator_keeps_it_and_the_report_says_so() {
    let program = program("own_malloc.c");
    in_all_arms(&program, &[]);
    let report = report_of(&program, &[]);
    let not_in_use = report.contains("report of own_malloc") && report.contains("not in use, malloc comes from");
    assert!(not_in_use && report.trim_end().ends_with("own_malloc"), "{report}");
}

#[test]
fn functions_of_the_header_are_weak_and_work_with_the_library() {
    for (output, language) in [("header", "-std=c99"), ("header_cpp", "-std=c++17")] {
        let program = compiled(output, "header.c", &[language]);
        assert_ok(Arm::Without.command(&program).arg("alone"));
        assert_ok(Arm::Default.command(&program).arg("with"));
        assert_ok(Arm::Everything.command(&program).arg("with"));
    }
}

/// A program that is not position-independent has its own address for `malloc`, a stub that leads to the library's function.
#[test]
fn program_at_a_fixed_address_is_not_taken_for_an_allocator() {
    let program = compiled("functions_fixed", "functions.c", &["-no-pie", "-fno-pie"]);
    in_all_arms(&program, &[]);
    assert!(served(&program) > 0);
}

#[test]
fn a_static_program_runs_without_the_library_and_prints_no_error() {
    let program = compiled("hello_static", "hello.c", &["-static"]);
    for arm in ARMS {
        assert_ok(arm.command(&program).env("ZK_ALLOC_REPORT", "1"));
    }
}

/// musl's loader supports LD_PRELOAD too.
#[test]
fn musl_program_runs_as_without_the_library() {
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
fn library_that_is_loaded_late_says_that_it_does_nothing() {
    let errors = errors_of(Arm::Without.command(program("dlopen.c")).arg("late").arg(library()));
    assert!(errors.lines().all(|line| line.contains("libzk_alloc.so was loaded too late")), "{errors}");
    assert!(errors.lines().count() >= 1, "nothing was output");
}

#[test]
fn double_free_or_free_of_a_bad_address_ends_the_program() {
    let program = program("messages.c");
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

/// The loader finds the other library's functions before glibc's: `malloc_usable_size`, `__libc_malloc`,
/// `operator new`.
#[test]
fn no_memory_crosses_between_the_library_and_a_linked_allocator() {
    let (program, other) = program_with_library("other_allocator.cc");
    at_each_threshold(&program, &[]);
    // Without the library, the other allocator's own `malloc_trim` ends the program. With it, the call trims glibc's
    // heap and the arena.
    assert_eq!(outcome_of(Arm::Without.command(&program).arg("trim")).out, "");
    assert_ok(Arm::Default.command(&program).arg("trim"));
    assert_ok(Arm::Everything.command(&program).arg("trim"));
    // If both are preloaded, the first one serves the requests.
    for (first, second) in [(other.as_path(), library()), (library(), &other)] {
        let preload = format!("{} {}", first.display(), second.display());
        assert_ok(Arm::Everything.command(&program).env("LD_PRELOAD", preload));
    }
}

/// dig allocates most of its memory through jemalloc's own functions, and the rest through `malloc`.
#[test]
fn memory_of_jemallocs_own_functions_is_never_freed_by_the_library() {
    let crossing = library_of("crossing", "jemalloc_crossing.c");
    if !has("dig") {
        return;
    }
    for threshold in ["65536", "0", "1", "4096"] {
        let mut command = Arm::Default.command("dig");
        let preload = format!("{} {}", crossing.display(), library().display());
        // No server answers, and dig reports this after it has freed all of its memory.
        command.args(["-p", "9", "@127.0.0.1", "+time=1", "+tries=1", "name.example"]);
        let output = outcome_of(command.env("LD_PRELOAD", preload).env("ZK_ALLOC_MIN_BYTES", threshold));
        assert!(output.out.contains("name.example"), "{threshold}: {} {}", output.out, output.err);
        assert!(output.err.contains("crossing: used, 0 crossed"), "{threshold}: {}", output.err);
    }
}

/// The C++ library is visible only to the library that `dlopen` loads, so the global scope has no function that throws `bad_alloc`.
#[test]
fn a_program_without_a_cpp_library_loads_one_that_throws() {
    let library = library_of("no_memory", "no_memory.cc");
    at_each_threshold(&program("dlopen.c"), &["no memory", text(&library)]);
}

#[test]
fn without_a_cpp_library_new_ends_the_program_and_says_why() {
    let output = outcome_of(Arm::Default.command(program("messages.c")).arg("no C++"));
    assert_eq!((output.out.as_str(), output.signal), ("ok\n", Some(6)), "{}", output.err);
    assert!(output.err.contains("operator new: no memory for 9223372036854771711 bytes"), "{}", output.err);
}

/// The library's functions must not call each other by names that the program may define itself.
#[test]
fn glibcs_second_names_never_call_the_programs_malloc_wrapper() {
    let program = program("wrapped_malloc.c");
    at_each_threshold(&program, &[]);
    assert!(served(&program) > 0);
}
