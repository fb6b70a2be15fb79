//! Tests in a control group with a memory limit.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io, process};

use crate::support::{Ended, Settings, child, child_as, is_alone, skip};

/// A control group of the memory controller. Dropping it removes it.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group with this limit below the group of this process, or returns why that failed.
    fn new(limit_bytes: usize) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
        let v2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let (root, own, file) = match (v1, v2) {
            (Some((_, own)), _) => ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes"),
            (None, Some(own)) => ("/sys/fs/cgroup", own, "memory.max"),
            (None, None) => return Err("no memory controller".into()),
        };
        static GROUPS: AtomicUsize = AtomicUsize::new(0);
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let path =
            PathBuf::from(format!("{root}{}/zk-alloc-test-{}-{number}", own.trim_end_matches('/'), process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let group = Self(path);
        let limit = group.0.join(file);
        let written =
            fs::OpenOptions::new().write(true).open(&limit).and_then(|_| fs::write(&limit, limit_bytes.to_string()));
        written.map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// As [`child`], in a control group that may use this much memory. If no such group can be made, says why and returns `None`.
#[track_caller]
pub(crate) fn child_in_a_group(limit_bytes: usize, settings: Settings, body: impl FnOnce()) -> Option<Ended> {
    if is_alone() {
        return child(settings, body);
    }
    let group = match ControlGroup::new(limit_bytes) {
        Ok(group) => group,
        Err(reason) => {
            skip("no control group can be made", reason);
            return None;
        }
    };
    let processes = CString::new(group.0.join("cgroup.procs").into_os_string().into_vec()).expect("a path");
    let join = move || {
        // SAFETY: two calls that neither allocate nor lock; their arguments live as long as the closure. 0 stands for the
        // writer.
        let joined = unsafe { libc::write(libc::open(processes.as_ptr(), libc::O_WRONLY), c"0".as_ptr().cast(), 1) };
        if joined == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // The process joins the group before it starts, because the arena reads the limit at the start.
    // SAFETY: see `join`.
    child_as(settings, |command| _ = unsafe { command.pre_exec(join) }, body)
}
