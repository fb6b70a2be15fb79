//! The memory of processes and of the container, as the kernel counts it.

use std::fs;
use std::path::Path;

/// The memory that this process may use: the limit of its container (control group), or else the machine's memory.
pub fn limit_bytes() -> usize {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let container = container_bytes(Path::new("/sys/fs/cgroup"), &groups);
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib_field(&text, "MemTotal:"));
    container.into_iter().chain(machine).min().unwrap_or(usize::MAX)
}

/// The smallest limit among the control groups of a process and all their parents. `groups` is its `/proc/self/cgroup`.
fn container_bytes(root: &Path, groups: &str) -> Option<usize> {
    let limit_of = |line: &str| -> Option<usize> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (folder, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            return None;
        };
        let group = folder.join(path.trim_start_matches('/'));
        let up_to_root = group.ancestors().take_while(|group| group.starts_with(&folder));
        up_to_root.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
    };
    groups.lines().filter_map(limit_of).min()
}

/// The resident memory of this process.
pub fn rss_bytes() -> usize {
    rss_of("self")
}

/// The resident memory of a process; 0 if there is none of this number.
pub fn rss_of(pid: &str) -> usize {
    fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(|text| kib_field(&text, "VmRSS:")).unwrap_or(0)
}

/// A field of `/proc` that the kernel writes as `Name:   123 kB`, in bytes. Allocates nothing.
pub fn kib_field(text: &str, name: &str) -> Option<usize> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: usize = value.trim().trim_end_matches("kB").trim_end().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_of_a_group_and_its_parents_limits_it() {
        let root = std::env::temp_dir().join(format!("proving-service-groups-{}", std::process::id()));
        let group = root.join("pods/pod-7");
        fs::create_dir_all(&group).unwrap();
        fs::write(root.join("pods/memory.max"), "1000\n").unwrap();
        fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(container_bytes(&root, "0::/pods/pod-7\n"), Some(1000));
        fs::write(group.join("memory.max"), "700\n").unwrap();
        assert_eq!(container_bytes(&root, "12:cpu:/\n0::/pods/pod-7\n"), Some(700));
        assert_eq!(container_bytes(&root, "0::/\n"), None);
        fs::create_dir_all(root.join("memory/job")).unwrap();
        fs::write(root.join("memory/job/memory.limit_in_bytes"), "300\n").unwrap();
        assert_eq!(container_bytes(&root, "4:cpu,memory:/job\n"), Some(300));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn this_process_has_resident_memory_below_its_limit() {
        assert!(rss_bytes() > 0 && rss_bytes() < limit_bytes());
        assert_eq!(rss_of("0"), 0);
    }
}
