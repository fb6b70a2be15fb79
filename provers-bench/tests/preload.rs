//! Plonky3's provers, compiled for the C library's allocator, with `libzk_alloc.so` before it.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod common;
#[path = "../../integrations/preload/tests/support/mod.rs"]
mod support;

use common::{Bench, arm, stderr, stdout};

/// Every proof is verified, and the arm that is linked with the arena stands beside the one that the library serves.
#[test]
fn provers_of_the_c_librarys_allocator_prove_with_the_library() {
    for min_bytes in [None, Some("0")] {
        let bench = Bench::new(&format!("preload-{}", min_bytes.unwrap_or("default")));
        let mut driver = bench.command("plonky3 --log-rows 10 --rounds 2 --processes 1 --allocators glibc,zk-alloc");
        driver.env("LD_PRELOAD", support::library()).env("ZK_ALLOC_REPORT", "1");
        if let Some(bytes) = min_bytes {
            driver.env("ZK_ALLOC_MIN_BYTES", bytes);
        }
        let output = driver.output().expect("the driver starts");
        let (table, progress) = (stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(0), "{table}\n{progress}");
        let result = bench.result();
        for workload in ["poseidon2", "keccak", "whir"] {
            for name in ["glibc", "zk-alloc"] {
                let samples = arm(&result, workload, name)["samples"].as_array().unwrap();
                assert_eq!(samples.len(), 3, "a cold and two warm proofs");
                assert!(samples.iter().all(|sample| sample["verified"] == true), "{samples:?}");
            }
        }
        for program in ["with-glibc", "with-zk-alloc"] {
            let reports: Vec<_> =
                progress.lines().filter(|line| line.contains(&format!("report of {program}"))).collect();
            assert!(reports.iter().any(|line| line.contains(": served ")), "{program}: {progress}");
        }
    }
}
