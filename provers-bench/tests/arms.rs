//! Every arm links the allocator of its name, and its settings take effect.

mod common;

use common::{BINARIES, Bench, arm, plonky3, stderr, stdout};
use provers_bench::arms::{ARMS, Arm};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An arm's binary in the bench's own package, which contains no prover.
fn binary(arm: &Arm) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_prove-bench")).with_file_name(arm.binary)
}

/// A child's reply to the set-up of `arm`, in an environment that may contradict the arm's. The child confirms the
/// arm's settings before it looks for the prover.
fn set_up(arm: &Arm, environment: &[(&str, &str)]) -> Value {
    set_up_prover(&binary(arm), arm, environment, "none")
}

fn set_up_prover(binary: &Path, arm: &Arm, environment: &[(&str, &str)], prover: &str) -> Value {
    let mut child = Command::new(binary)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = json!({
        "request": "setup", "arm": arm.name, "prover": prover, "workload": "keccak", "log_rows": 10,
        "requires": arm.requires(), "stack_bytes": 0,
    });
    writeln!(child.stdin.take().unwrap(), "{request}").unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn named(name: &str) -> &'static Arm {
    ARMS.iter().find(|arm| arm.name == name).unwrap()
}

/// A peer that runs with its defaults under the name of a tuned one would lose unfairly.
#[test]
fn a_setting_that_did_not_take_fails_its_arm_with_what_was_found() {
    for (name, environment, found) in [
        ("glibc-tuned", ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432"), "it is mapped by itself"),
        ("glibc-tuned", ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=0"), "it is given back"),
        ("glibc-hugetlb", ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"), "asks for huge pages is no, not yes"),
        ("jemalloc-hpa", ("_RJEM_MALLOC_CONF", "hpa:false"), "opt.hpa is false, not true"),
        ("jemalloc-tuned", ("_RJEM_MALLOC_CONF", "thp:always"), "opt.metadata_thp is disabled, not auto"),
        ("jemalloc-tuned", ("_RJEM_MALLOC_CONF", "thp:sometimes"), "opt.thp is default, not always"),
        ("mimalloc-tuned", ("MIMALLOC_PURGE_DELAY", "7"), "purge_delay is 7, not -1"),
        ("tcmalloc-tuned", ("GLIBC_TUNABLES", "glibc.pthread.rseq=1"), "PerCpuCachesActive is false, not true"),
        ("tcmalloc-tuned", ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"), "MaxPerCpuCacheSize is 1572864, not 16777216"),
    ] {
        let reply = set_up(named(name), &[environment]);
        assert_eq!(reply["reply"], "failed", "{reply}");
        let reason = reply["reason"].as_str().unwrap();
        assert!(reason.contains("its setting did not take: ") && reason.contains(found), "{name}: {reason}");
    }
}

#[test]
fn every_arms_own_settings_take() {
    let huge_pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    // glibc gives its advice only under this setting of the host.
    let is_possible = |arm: &&Arm| arm.name != "glibc-hugetlb" || huge_pages.contains("[madvise]");
    for arm in ARMS.iter().filter(is_possible) {
        let reply = set_up(arm, arm.environment);
        assert_eq!(reply["reason"], "unknown prover", "{}: {reply}", arm.name);
        if BINARIES.contains(&arm.binary) {
            let reply = set_up_prover(&plonky3(arm.binary), arm, arm.environment, "plonky3");
            assert_eq!(reply["reply"], "ready", "{}: {reply}", arm.name);
            assert_eq!(reply["confirmed"].as_array().unwrap().len(), arm.requires().len(), "{reply}");
        }
    }
}

/// A binary with two allocators runs the start-up code of both.
#[test]
fn each_binary_links_one_allocator() {
    let marks: [(&str, &[u8]); 3] = [
        ("jemalloc", b"<jemalloc>: Error"),
        ("mimalloc", b"mimalloc: warning: "),
        ("tcmalloc", b"TCMALLOC_HPAA_CONTROL"),
    ];
    let mut binaries: BTreeSet<_> = ARMS.iter().map(|arm| (arm.binary, binary(arm))).collect();
    binaries.insert(("prove-bench", env!("CARGO_BIN_EXE_prove-bench").into()));
    for (name, path) in binaries {
        let code = std::fs::read(&path).unwrap();
        for (allocator, mark) in marks {
            let linked = code.windows(mark.len()).any(|window| window == mark);
            assert_eq!(linked, name == format!("with-{allocator}"), "{allocator} in {name}");
        }
    }
}

/// Without CMake, snmalloc is built with its assertions and is slow, unless `.cargo/config.toml` disables them.
#[test]
fn snmalloc_runs_without_its_assertions() {
    let code = std::fs::read(binary(named("snmalloc"))).unwrap();
    let holds = |text: &[u8]| code.windows(text.len()).any(|window| window == text);
    assert!(holds(b"Check fail: {} in {}"), "the format of its checks, which stay, has changed");
    assert!(!holds(b"assert fail: {} in {}"));
}

/// Bump-reset must run inside its own phases, where it fails as it does in production. Its failure must not fail a run
/// that demonstrates it. From 2^12 rows on, the overwritten blocks are large enough for its arena to serve them.
#[test]
fn bump_reset_fails_at_its_second_proof_and_the_run_succeeds() {
    let bench = Bench::new("bump-reset");
    let output = bench.run("plonky3 --workloads poseidon2 --log-rows 12 --rounds 1 --allocators bump-reset,jemalloc");
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{table}\n{}", stderr(&output));
    assert!(table.contains("bump-reset: known to fail"), "{table}");
    let result = bench.result();
    let peer = arm(&result, "poseidon2", "bump-reset");
    assert_eq!((&peer["outcome"]["outcome"], &peer["outcome"]["round"]), (&"failed".into(), &1.into()), "{peer}");
    assert!(peer["outcome"]["reason"].as_str().unwrap().starts_with("proof 2 does not verify: "), "{peer}");
    assert_eq!(arm(&result, "poseidon2", "jemalloc")["outcome"]["outcome"], "finished");
}
