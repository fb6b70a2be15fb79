//! Programs that bring a second allocator, or parts of one. No memory crosses from one to the other, at any threshold.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use support::{
    Arm, assert_ok, compiled, compiled_library, compiled_with_library, has, in_all_arms, library, outcome_of, programs,
    report_of, text,
};

const CPP: [&str; 2] = ["-std=c++17", "-Wno-mismatched-new-delete"];

/// Runs a program in each arm, and at other thresholds.
fn at_each_threshold(program: &Path, arguments: &[&str]) {
    in_all_arms(program, arguments);
    for threshold in ["1", "4096"] {
        assert_ok(Arm::Default.command(program).args(arguments).env("ZK_ALLOC_MIN_BYTES", threshold));
    }
}

/// The loader finds the other library's functions before glibc's: `malloc_usable_size`, `__libc_malloc`,
/// `operator new`.
#[test]
fn a_program_linked_with_another_allocator_gets_nothing_of_its_memory() {
    let Some((program, library)) = compiled_with_library("other", "other_allocator.cc", &CPP) else { return };
    at_each_threshold(&program, &[]);
    // Without the library, the other allocator's own `malloc_trim` ends the program. With it, the call trims glibc's
    // heap and the arena.
    assert_eq!(outcome_of(Arm::Without.command(&program).arg("trim")).out, "");
    assert_ok(Arm::Default.command(&program).arg("trim"));
    assert_ok(Arm::Everything.command(&program).arg("trim"));
    // If both are preloaded, the first one serves.
    for (first, second) in [(library.as_path(), support::library()), (support::library(), &library)] {
        let preload = format!("{} {}", first.display(), second.display());
        assert_ok(Arm::Everything.command(&program).env("LD_PRELOAD", preload));
    }
}

/// dig takes most of its memory through jemalloc's own functions, and the rest through `malloc`.
#[test]
fn what_jemalloc_handed_out_by_its_own_functions_is_never_freed_by_ours() {
    let Some(crossing) = compiled_library("libcrossing.so", "jemalloc_crossing.c", &[]) else { return };
    if !has("dig") {
        return;
    }
    for threshold in ["65536", "0", "1", "4096"] {
        let mut command = Arm::Default.command("dig");
        let preload = format!("{} {}", crossing.display(), library().display());
        // No server answers. dig prints that after it has made and freed everything.
        command.args(["-p", "9", "@127.0.0.1", "+time=1", "+tries=1", "name.example"]);
        let output = outcome_of(command.env("LD_PRELOAD", preload).env("ZK_ALLOC_MIN_BYTES", threshold));
        assert!(output.out.contains("name.example"), "{threshold}: {} {}", output.out, output.err);
        assert!(output.err.contains("crossing: used, 0 crossed"), "{threshold}: {}", output.err);
    }
}

programs! {
    /// By the C++ standard, each form of `operator new` and `operator delete` calls the simpler one, which a program may
    /// define.
    a_program_with_its_own_operator_new_keeps_it_for_all_forms: at_each_threshold(
        "own_new", "own_new.cc", &[&CPP[..], &["-Wno-sized-deallocation"]].concat(), &[]);
    where_memory_is_short_new_calls_the_handler_and_throws: at_each_threshold(
        "no_memory", "no_memory.cc", &CPP, &[]);
    memory_may_be_freed_by_the_second_names_of_glibc: at_each_threshold(
        "functions", "functions.c", &[], &["second names"]);
}

/// Only the loaded library sees the C++ library: the global scope has no function that throws.
#[test]
fn a_program_without_a_cpp_library_loads_one_that_throws() {
    let Some(library) = compiled_library("libno_memory.so", "no_memory.cc", &CPP) else { return };
    let Some(program) = compiled("dlopen", "dlopen.c", &[]) else { return };
    at_each_threshold(&program, &["no memory", text(&library)]);
}

#[test]
fn without_a_cpp_library_new_ends_the_program_and_says_why() {
    let Some(program) = compiled("messages", "messages.c", &[]) else { return };
    let output = Arm::Default.command(program).arg("no C++").output().expect("the program starts");
    let signal = output.status.signal();
    let output = support::Outcome::from(output);
    assert_eq!((output.out.as_str(), signal), ("ok\n", Some(6)), "{}", output.err);
    assert!(output.err.contains("operator new: no memory for 9223372036854771711 bytes"), "{}", output.err);
}

/// Our functions must not call each other by names that the program has taken.
#[test]
fn a_wrapper_of_malloc_by_the_second_names_is_not_called_by_what_it_calls() {
    let Some(program) = compiled("wrapped_malloc", "wrapped_malloc.c", &[]) else { return };
    at_each_threshold(&program, &[]);
    let report = report_of(&program, &[]);
    assert!(report.contains(": served "), "{report}");
}
