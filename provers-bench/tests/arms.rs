//! Tests that every arm links the allocator that it names, that its settings take effect, and that provers work with `libzk_alloc.so`
//! preloaded.

mod common;
#[path = "../../integrations/preload/tests/support/mod.rs"]
mod support;

use common::{BINARIES, Bench, arm, list, plonky3};
use provers_bench::arms::{ARMS, Arm};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the path of an arm's binary in the bench's own package, which contains no prover.
fn binary(arm: &Arm) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_prove-bench")).with_file_name(arm.binary)
}

/// Sends requests to a child of the bench. Returns its replies, and its output when it has exited.
fn replies(command: &mut Command, requests: &[Value]) -> (Vec<Value>, Output) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    requests.iter().for_each(|request| writeln!(stdin, "{request}").unwrap());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let replies: Result<_, _> = serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect();
    (replies.unwrap_or_else(|_| panic!("{output:?}")), output)
}

fn set_up_request(arm: &str, prover: &str, workload: &str, requires: Value) -> Value {
    json!({
        "request": "setup", "arm": arm, "prover": prover, "workload": workload, "log_rows": 10, "requires": requires,
        "stack_bytes": 0
    })
}

/// Sends the set-up request for `arm` to a child and returns the reply. The child runs with `environment`, which may contradict the arm's
/// settings. It checks these settings before it looks for the prover.
fn set_up(binary: &Path, arm: &Arm, environment: &[(&str, &str)], prover: &str) -> Value {
    let request = set_up_request(arm.name, prover, "keccak", json!(arm.requires()));
    let (replies, output) = replies(Command::new(binary).envs(environment.iter().copied()), &[request]);
    let [reply] = <[Value; 1]>::try_from(replies).unwrap_or_else(|_| panic!("{output:?}"));
    reply
}

fn named(name: &str) -> &'static Arm {
    ARMS.iter().find(|arm| arm.name == name).unwrap()
}

/// If a tuned arm silently ran with the defaults, the comparison would be unfair to that peer.
#[test]
fn an_arm_whose_setting_has_no_effect_fails_and_names_the_value_in_force() {
    for (name, environment, found) in [
        ("glibc-tuned", ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=33554432"), "it is mapped separately"),
        ("glibc-tuned", ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=0"), "it is returned to the system"),
        ("glibc-hugetlb", ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"), "asks for huge pages is no, not yes"),
        ("jemalloc-hpa", ("_RJEM_MALLOC_CONF", "hpa:false"), "opt.hpa is false, not true"),
        ("jemalloc-tuned", ("_RJEM_MALLOC_CONF", "thp:always"), "opt.metadata_thp is disabled, not auto"),
        ("jemalloc-tuned", ("_RJEM_MALLOC_CONF", "thp:sometimes"), "opt.thp is default, not always"),
        ("mimalloc-tuned", ("MIMALLOC_PURGE_DELAY", "7"), "purge_delay is 7, not -1"),
        ("tcmalloc-tuned", ("GLIBC_TUNABLES", "glibc.pthread.rseq=1"), "PerCpuCachesActive is false, not true"),
        ("tcmalloc-tuned", ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"), "MaxPerCpuCacheSize is 1572864, not 16777216"),
    ] {
        let reply = set_up(&binary(named(name)), named(name), &[environment], "none");
        assert_eq!(reply["reply"], "failed", "{reply}");
        let reason = reply["reason"].as_str().unwrap();
        assert!(reason.contains("its setting did not take: ") && reason.contains(found), "{name}: {reason}");
    }
}

#[test]
fn the_settings_of_every_arm_take_effect() {
    let huge_pages = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    // glibc requests huge pages only if the host's setting is `madvise`.
    let is_possible = |arm: &&Arm| arm.name != "glibc-hugetlb" || huge_pages.contains("[madvise]");
    for arm in ARMS.iter().filter(is_possible) {
        let is_confirmed = arm.environment.is_empty() || arm.is_ours || !arm.requires().is_empty();
        assert!(is_confirmed, "a tuned peer that confirms nothing could show the default's figures: {}", arm.name);
        let reply = set_up(&binary(arm), arm, arm.environment, "none");
        assert_eq!(reply["reason"], "unknown prover", "{}: {reply}", arm.name);
        if BINARIES.contains(&arm.binary) {
            let reply = set_up(&plonky3(arm.binary), arm, arm.environment, "plonky3");
            assert_eq!(reply["reply"], "ready", "{}: {reply}", arm.name);
            assert_eq!(list(&reply["confirmed"]).len(), arm.requires().len(), "{reply}");
        }
    }
}

/// If a binary linked two allocators, the start-up code of both would run and affect its measurements.
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
        // snmalloc's assertions, which make it slow, are enabled in builds without CMake, so `.cargo/config.toml` disables them.
        let holds = |text: &[u8]| code.windows(text.len()).any(|window| window == text);
        assert_eq!(holds(b"Check fail: {} in {}"), name == "with-snmalloc", "the checks that stay, in {name}");
        assert!(!holds(b"assert fail: {} in {}"), "an assertion of snmalloc in {name}");
    }
}

/// The bump-reset arm must run inside its own phases, where it fails as it does in production. It is known to fail, so its failure must not
/// fail the run. At 2^12 rows, the blocks that it overwrites are just large enough to come from its arena.
#[test]
fn bump_reset_fails_at_its_second_proof_and_the_run_succeeds() {
    let options = "--workloads poseidon2 --log-rows 12 --rounds 1 --allocators bump-reset,jemalloc";
    let (_, result, table) = Bench::proved("bump-reset", options);
    assert!(table.contains("bump-reset: known to fail"), "{table}");
    let peer = arm(&result, "poseidon2", "bump-reset");
    assert_eq!((&peer["outcome"]["outcome"], &peer["outcome"]["round"]), (&"failed".into(), &1.into()), "{peer}");
    assert!(peer["outcome"]["reason"].as_str().unwrap().starts_with("proof 2 does not verify: "), "{peer}");
    assert_eq!(arm(&result, "poseidon2", "jemalloc")["outcome"]["outcome"], "finished");
}

/// Every proof must verify, with and without the preloaded library, both in a program that uses glibc's malloc and in one that links the
/// arena.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn provers_prove_with_the_library_preloaded() {
    for workload in ["poseidon2", "keccak", "whir"] {
        for child in [plonky3("with-glibc"), plonky3("with-zk-alloc")] {
            for arm in support::ARMS {
                let requests = [
                    set_up_request("it", "plonky3", workload, json!([])),
                    json!({"request": "prove", "round": 0, "seed": 7}),
                    json!({"request": "prove", "round": 1, "seed": 7}),
                ];
                let mut command = arm.command(&child);
                let (replies, output) =
                    replies(command.env("ZK_ALLOC_REPORT", "1").env("RAYON_NUM_THREADS", "2"), &requests);
                let printed = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{child:?}: {printed}");
                let proofs: Vec<_> = replies.iter().filter(|reply| reply["reply"] == "proved").collect();
                assert_eq!(proofs.len(), 2, "{child:?} {workload} {arm:?}: {replies:?}");
                assert!(proofs.iter().all(|proof| proof["sample"]["verified"] == true), "{proofs:?}");
                let is_served = printed.lines().any(|line| line.contains("report of") && line.contains(": served "));
                assert_eq!(is_served, arm != support::Arm::Without, "{child:?} {workload} {arm:?}: {printed}");
            }
        }
    }
}
