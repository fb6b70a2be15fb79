//! The tasks of this process, as the kernel counts them.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The folders of all tasks of this process.
pub(crate) fn tasks() -> Vec<PathBuf> {
    fs::read_dir("/proc/self/task").expect("Linux has it").map(|task| task.expect("an entry").path()).collect()
}

/// The tasks with the allocator's name.
pub(crate) fn ours() -> Vec<PathBuf> {
    let is_ours = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("zk-alloc"));
    tasks().into_iter().filter(is_ours).collect()
}

/// Whether `count` tasks have the allocator's name, or will in a moment: a new thread names itself, and the kernel lists one that
/// was joined a little longer.
pub(crate) fn are_ours(count: usize) -> bool {
    let begun = Instant::now();
    while ours().len() != count && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    ours().len() == count
}
