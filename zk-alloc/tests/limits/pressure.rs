//! Near the memory limit of its control group, a process gives up free memory that it would otherwise retain.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, process, thread};

use crate::support::blocks::MIB;
use crate::support::process::soon;
use crate::support::{Ended, Settings, assert_patterned, child, child_as, field, is_alone, patterned, skip};
use zk_alloc::{Retain, phase, set_retain, start_background_thread, stats};

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

/// Longer than the arena trusts what it last read of the control group.
const A_WHILE: Duration = Duration::from_millis(150);

/// A proof of 100 MiB.
fn prove() {
    phase(|| drop(patterned(100 * MIB / 8, 1)));
}

/// Runs `body` in a control group of 256 MiB, in a process of its own that warned as often as given.
#[track_caller]
fn in_256_mib(settings: Settings, warnings: usize, body: impl FnOnce()) {
    let Some(ended) = child_in_a_group(256 * MIB, settings, body) else { return };
    ended.assert_passed();
    let told = ended.warnings();
    assert_eq!(told.len(), warnings, "{ended:?}");
    assert!(told.iter().all(|line| line.contains("short of memory: purged")), "{told:?}");
}

/// A phase ends while 100 MiB are free and 130 MiB are in use, 6 MiB more than seven eighths of the limit.
fn end_a_phase_near_the_limit() {
    prove();
    let rest = patterned(130 * MIB / 8, 2);
    thread::sleep(A_WHILE);
    phase(|| ());
    assert_patterned(&rest, 2);
}

#[test]
fn a_process_far_below_the_limit_keeps_its_memory() {
    in_256_mib(&[], 0, || {
        for _ in 0..3 {
            prove();
            thread::sleep(A_WHILE);
        }
        assert!(stats().resident_bytes >= 100 * MIB, "{}", stats());
        assert_eq!(stats().pressure_purges, 0, "{}", stats());
    });
}

/// Another policy of retention must not switch this off.
#[test]
fn near_the_limit_the_end_of_a_phase_purges_what_is_missing() {
    for retain in [None, Some(Retain::For(Duration::from_secs(3600)))] {
        in_256_mib(&[], 1, || {
            retain.into_iter().for_each(set_retain);
            end_a_phase_near_the_limit();
            let seen = stats();
            assert_eq!(seen.pressure_purges, 1, "{seen}");
            assert!((MIB..60 * MIB).contains(&(seen.purged_bytes as usize)), "no more than is missing: {seen}");
            prove();
        });
    }
}

/// A filter of system calls may end the process for a look at the group.
#[test]
fn in_a_sandbox_the_group_is_not_read() {
    in_256_mib(&[("ZK_ALLOC_SANDBOX", "1")], 0, || {
        end_a_phase_near_the_limit();
        assert_eq!(stats().pressure_purges, 0, "{}", stats());
    });
}

/// A look at the control group takes some 50 µs, which a program of short phases would pay at the end of each.
#[test]
fn short_phases_read_the_control_group_at_most_ten_times_a_second() {
    /// More than the files of a deep control group take.
    const MAX_READS_PER_LOOK: u128 = 100;
    in_256_mib(&[], 0, || {
        prove();
        let (begun, before) = (Instant::now(), reads());
        (0..10_000).for_each(|_| phase(|| ()));
        let (passed, reads) = (begun.elapsed(), reads() - before);
        let looks = passed.as_millis() / 100 + 2;
        assert!(u128::from(reads) <= looks * MAX_READS_PER_LOOK, "{reads} reads in {passed:?}");
    });
}

/// How often this process called read(2) and its like.
fn reads() -> u64 {
    field("/proc/self/io", "syscr").parse().expect("a number")
}

/// Another process of the container may need the memory while this one is idle.
#[test]
fn the_background_thread_purges_while_the_process_is_idle() {
    in_256_mib(&[], 1, || {
        start_background_thread().expect("a thread");
        prove();
        let rest = patterned(130 * MIB / 8, 2);
        assert!(soon(|| stats().pressure_purges > 0), "{}", stats());
        assert_patterned(&rest, 2);
    });
}
