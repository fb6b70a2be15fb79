//! What a thread keeps stays its own where its cache was claimed when it looked.
#![allow(unsafe_code, reason = "gives memory back")]

use std::process::Command;

use crate::arena::{self, Contents, thread_cache};
use crate::config::{self, Settings};

/// As in a process that was forked off while a thread of its parent claimed caches.
#[test]
fn blocks_that_could_not_be_reached_for_a_moment_are_used_before_others_are_fetched() {
    const SIZE: usize = 1000;
    const ALONE: &str = "ZK_ALLOC_TEST_ALONE";
    // The arena's address space is no other test's affair.
    if std::env::var_os(ALONE).is_none() {
        let name = std::thread::current().name().expect("a test's thread").to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args([&name, "--exact"]).env(ALONE, "1").output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{name}: {stdout}");
        return;
    }
    config::introduce(&Settings::new());
    let arena = arena::open().expect("address space");
    let alloc = || arena.alloc(SIZE, 8, Contents::Any).expect("memory");
    let free = |blocks: Vec<_>| {
        for block in blocks {
            // SAFETY: of the arena, of this length, and freed once.
            unsafe { arena.dealloc(block, SIZE) };
        }
    };
    free((0..64).map(|_| alloc()).collect());
    let kept = arena::kept_bytes();
    let entered = thread_cache::enter().expect("this thread has a cache");
    assert!(entered.claim(u64::MAX));
    drop(entered);
    let block = alloc();
    assert!(arena::kept_bytes() < kept, "{kept} bytes were kept, now {}", arena::kept_bytes());
    free(vec![block]);
    assert_eq!(arena::kept_bytes(), kept);
}
