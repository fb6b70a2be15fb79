//! Facts about this process and its parent, from `/proc`. The memory for them is glibc's.

use std::fs;
use std::os::unix::process::parent_id;

use crate::start;

/// Whether the parent process has the library, too. `false` if that cannot be determined.
pub(crate) fn parent_has_library() -> bool {
    let Some(own) = start::own_file() else { return false };
    let name = own.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    !name.is_empty() && of_parent("maps").windows(name.len()).any(|window| window == name)
}

/// Whether the parent process was started with this variable and value, an entry of environ(7). `false` if that cannot
/// be determined.
pub(crate) fn parent_was_started_with(entry: &[u8]) -> bool {
    of_parent("environ").split(|&byte| byte == 0).any(|known| known == entry)
}

/// One of the parent's files, if it may be read.
fn of_parent(file: &str) -> Vec<u8> {
    fs::read(format!("/proc/{}/{file}", parent_id())).unwrap_or_default()
}

/// The bytes of the process's private memory that lie in huge pages now.
pub(crate) fn huge_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
}
