//! Behaviour when memory is short. Near the memory limit of its control group, a process purges free memory that it would otherwise retain.
//! If the system refuses memory, the backing allocator serves the requests, which are counted, and the arena writes one warning. It never
//! aborts a program that would have run without the arena.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::CString;
use std::hint::black_box;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, io, process, thread};

use crate::ALLOC;
use crate::support::blocks::MIB;
use crate::support::process::{limited, soon, without_more_memory};
use crate::support::{
    Ended, Settings, address_space_bytes, assert_patterned, child, child_as, field, is_alone, may_change_host,
    patterned, rss_bytes, skip, with_one_warning,
};
use zk_alloc::{Retain, overflow_stats, phase, reset_overflow_stats, set_retain, start_background_thread, stats};

/// A control group with a memory limit. Dropping it removes the group.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes a group with this limit below the group of this process. On failure, returns the reason.
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

/// Like [`child`], but in a control group with this memory limit. If no such group can be made, prints the reason and returns `None`.
#[track_caller]
pub(crate) fn child_in_a_group(limit_bytes: usize, settings: Settings, body: impl FnOnce()) -> Option<Ended> {
    if is_alone() {
        return child(settings, body);
    }
    let group = ControlGroup::new(limit_bytes);
    let group = group.inspect_err(|reason| skip("no control group can be made", reason)).ok()?;
    let processes = CString::new(group.0.join("cgroup.procs").into_os_string().into_vec()).expect("a path");
    let join = move || {
        // SAFETY: the closure makes two calls that neither allocate nor lock, and their arguments live as long as the closure. Writing 0
        // adds the calling process to the group.
        let joined = unsafe { libc::write(libc::open(processes.as_ptr(), libc::O_WRONLY), c"0".as_ptr().cast(), 1) };
        if joined == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // The process joins the group before its program starts, because the arena reads the limit at startup.
    // SAFETY: see `join`.
    child_as(settings, |command| _ = unsafe { command.pre_exec(join) }, body)
}

/// Longer than the minimum time between two reads of the control group's files.
const A_WHILE: Duration = Duration::from_millis(150);

/// Writes 100 MiB in a phase and frees them.
fn prove() {
    phase(|| drop(patterned(100 * MIB / 8, 1)));
}

/// Runs `body` in a process of its own, in a control group with a limit of 256 MiB. Fails unless the process writes exactly `warnings`
/// warnings, all of them about a purge.
#[track_caller]
fn in_256_mib(settings: Settings, warnings: usize, body: impl FnOnce()) {
    let Some(ended) = child_in_a_group(256 * MIB, settings, body) else { return };
    ended.assert_passed();
    let told = ended.warnings();
    assert_eq!(told.len(), warnings, "{ended:?}");
    assert!(told.iter().all(|line| line.contains("short of memory: purged")), "{told:?}");
}

/// Ends a phase while 100 MiB are free and 130 MiB are in use. This is 6 MiB more than seven eighths of the limit of 256 MiB.
fn end_a_phase_near_the_limit() {
    prove();
    let rest = patterned(130 * MIB / 8, 2);
    thread::sleep(A_WHILE);
    phase(|| ());
    assert_patterned(&rest, 2);
}

/// No retention policy may disable this purge. With the sandbox setting, the arena does not purge: it must not read the control group's
/// files, because the sandbox may kill the process for that.
#[test]
fn near_the_limit_the_end_of_a_phase_purges_what_is_missing_except_in_a_sandbox() {
    let for_an_hour = Some(Retain::For(Duration::from_secs(3600)));
    for (settings, retain, purges) in
        [(&[][..], None, 1), (&[], for_an_hour, 1), (&[("ZK_ALLOC_SANDBOX", "1")], None, 0)]
    {
        in_256_mib(settings, purges, || {
            retain.into_iter().for_each(set_retain);
            end_a_phase_near_the_limit();
            let (seen, purges) = (stats(), purges as u64);
            assert_eq!(seen.pressure_purges, purges, "{seen}");
            assert!(
                (purges * MIB as u64..60 * MIB as u64).contains(&seen.purged_bytes),
                "no more than is missing: {seen}"
            );
            prove();
        });
    }
}

/// Reading the control group's files takes about 50 µs, which would be too slow at the end of each short phase. Far below the limit,
/// nothing is purged.
#[test]
fn short_phases_read_the_control_group_at_most_ten_times_a_second() {
    /// More reads than one check makes, even in a deeply nested control group.
    const MAX_READS_PER_CHECK: u128 = 100;
    in_256_mib(&[], 0, || {
        prove();
        let (begun, before) = (Instant::now(), reads());
        (0..10_000).for_each(|_| phase(|| ()));
        let (passed, reads) = (begun.elapsed(), reads() - before);
        let checks = passed.as_millis() / 100 + 2;
        assert!(u128::from(reads) <= checks * MAX_READS_PER_CHECK, "{reads} reads in {passed:?}");
        assert!(stats().resident_bytes >= 100 * MIB && stats().pressure_purges == 0, "{}", stats());
    });
}

/// Returns how many times this process has called read(2) and similar calls.
fn reads() -> u64 {
    field("/proc/self/io", "syscr").parse().expect("a number")
}

/// While this process is idle, another process in the container may need the memory.
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

/// Allocates buffers of several sizes, the largest of `largest_words` words, and checks their contents.
fn prove_with(largest_words: usize) {
    let made: Vec<_> = [700, 4_000, 9_000, 50_000, largest_words].map(|len| patterned(len, len as u64)).into();
    made.iter().for_each(|words| assert_patterned(words, words.len() as u64));
}

/// Returns whether a vector can grow by 800 MiB.
fn reserve(words: &mut Vec<u64>) -> bool {
    let had = words.try_reserve_exact(100 * MIB).is_ok();
    black_box(words);
    had
}

/// Returns whether 800 MiB of zeroes can be allocated.
fn zeroed() -> bool {
    let layout = Layout::from_size_align(800 * MIB, 64).unwrap();
    // SAFETY: the layout's size is not zero.
    let at = black_box(unsafe { ALLOC.alloc_zeroed(layout) });
    if !at.is_null() {
        // SAFETY: the memory was allocated just above, with this layout.
        unsafe { ALLOC.dealloc(at, layout) };
    }
    !at.is_null()
}

/// If the address space is too small for the tables of even the smallest region, the arena does not open. The backing allocator serves all
/// requests, and those that the arena would have served count as overflow.
#[test]
fn without_address_space_the_backing_allocator_serves_and_its_requests_are_counted() {
    with_one_warning(&[], &["address space", "errno 12"], || {
        limited(libc::RLIMIT_AS, address_space_bytes() + 8 * MIB, || {
            (0..5).for_each(|_| phase(|| prove_with(1 << 17)));
            assert_eq!((stats().address_space_bytes, stats().arena_allocations), (0, 0));
            let (requests, bytes) = overflow_stats();
            assert!(requests >= 5 * 5 && bytes >= 5 * MIB, "{requests} requests, {bytes} bytes were counted");
        });
    });
}

/// The kernel counts memory against the limit when it becomes writable, so it may refuse memory in the middle of a phase. The arena then
/// serves requests from memory that it has already committed, and the backing allocator serves others from its own free memory.
#[test]
fn memory_refused_within_a_phase_is_counted_and_no_contents_are_lost() {
    with_one_warning(&[], &["commit", "errno 12"], || {
        // Gives the backing allocator free memory. The live block above it keeps the allocator from returning it to the system.
        let free_later: Vec<_> = (0..4_000u64).map(|seed| patterned(1_000, seed)).collect();
        let top = patterned(1_000, 9);
        drop(free_later);
        phase(|| {
            let before = [patterned(1_000, 1), patterned(100_000, 2)];
            let mut grown = before.clone();
            // Makes the arena commit memory for 3,000 blocks, and a little more in advance.
            drop(black_box((0..3_000u64).map(|seed| patterned(1_000, seed)).collect::<Vec<_>>()));
            // Checks the results afterwards, because a panic would need memory.
            let (made, had) = without_more_memory(|| {
                // These blocks need more memory than the arena has committed.
                let made: Vec<_> = (0..6_000u64).map(|seed| patterned(1_000, seed)).collect();
                // Neither allocator has enough memory, so these requests fail. Growth that fails leaves the old contents intact.
                let [small, large] = &mut grown;
                let had = [reserve(&mut Vec::new()), zeroed(), reserve(small), reserve(large)];
                (made, had)
            });
            assert_eq!(had, [false; 4]);
            made.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
            grown.iter().zip(1..).for_each(|(words, seed)| assert_patterned(words, seed));
            before.iter().zip(1..).for_each(|(words, seed)| assert_patterned(words, seed));
            assert_patterned(&top, 9);
        });
        let (requests, bytes) = overflow_stats();
        assert!(requests > 100 && bytes > 100 * 8_000, "{requests} requests, {bytes} bytes");
        assert!(stats().refusals >= 2, "{}", stats());
        // Once memory is available again, the arena grows as usual.
        reset_overflow_stats();
        let live = stats().live_bytes;
        phase(|| {
            let many: Vec<_> = (0..8_000u64).map(|seed| patterned(1_000, seed)).collect();
            many.iter().zip(0..).for_each(|(words, seed)| assert_patterned(words, seed));
            assert!(stats().live_bytes >= live + 60 * MIB, "{}", stats());
            prove_with(20 << 20);
        });
        assert_eq!(overflow_stats(), (0, 0));
    });
}

/// In a small container, memory that the arena retains between phases must leave room for the rest of the process. Otherwise, the kernel
/// kills the process. Phases use 160 MiB, and the process uses 110 MiB between them. Both fit in 256 MiB only if the arena retains at most
/// half of the limit.
#[test]
fn in_a_small_control_group_phases_leave_room_for_the_rest_of_the_process() {
    let ended = child_in_a_group(256 * MIB, &[], || {
        for round in 0..10 {
            phase(|| drop([patterned(2 << 20, round), patterned(9 << 20, round), patterned(9 << 20, round)]));
            assert!(stats().resident_bytes <= 128 * MIB, "{}", stats());
            let between = patterned(110 * MIB / 8, round);
            assert!(rss_bytes() <= 250 * MIB, "{} bytes\n{}", rss_bytes(), stats());
            assert_patterned(&between, round);
        }
        assert!(stats().run_allocations >= 30, "{}", stats());
        assert_eq!(overflow_stats(), (0, 0));
    });
    ended.iter().for_each(Ended::assert_passed_without_warnings);
}

/// A kernel setting that a test has changed. Dropping this restores the old value.
struct HostSetting {
    path: &'static str,
    old: String,
}

impl HostSetting {
    fn set(path: &'static str, value: &str) -> io::Result<Self> {
        let old = fs::read_to_string(path)?;
        fs::write(path, value)?;
        Ok(Self { path, old })
    }
}

impl Drop for HostSetting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.path, self.old.trim()) {
            eprintln!("{} can't be restored to {}: {error}", self.path, self.old.trim());
        }
    }
}

/// Turns on strict accounting, with a limit so high that nothing else on the machine is affected.
fn strict_accounting() -> io::Result<[HostSetting; 2]> {
    let ratio = HostSetting::set("/proc/sys/vm/overcommit_ratio", "1000")?;
    Ok([HostSetting::set("/proc/sys/vm/overcommit_memory", "2")?, ratio])
}

/// Under `vm.overcommit_memory=2`, the kernel counts all writable memory against a limit, even if it was never touched. It does not count
/// inaccessible address space, so the region is as large as usual, and is committed as it grows. The setting affects the whole machine, so
/// the test changes it only if `ZK_ALLOC_TEST_HOST=1` is set, and restores it afterwards.
#[test]
fn strict_accounting_changes_neither_the_region_nor_the_service() {
    if !is_alone() && !may_change_host() {
        return println!("skipped: ZK_ALLOC_TEST_HOST=1 allows this test to change vm.overcommit_memory for a moment");
    }
    // Two tests that change the setting at the same time could restore the wrong value.
    let lock = fs::File::create(env::temp_dir().join("zk-alloc-test-host.lock")).unwrap();
    let reserved = || {
        let ended = child(&[], || {
            for seed in 0..5 {
                let made: Vec<_> = phase(|| [700, 9_000, 90_000, 10 << 20].map(|len| patterned(len, seed)).into());
                made.iter().for_each(|words| assert_patterned(words, seed));
            }
            assert!(stats().slab_allocations >= 5 && stats().run_allocations >= 15, "{}", stats());
            assert_eq!((stats().refusals, overflow_stats()), (0, (0, 0)));
            println!("reserved {}", stats().address_space_bytes);
        })?;
        ended.assert_passed_without_warnings();
        Some(ended.printed("reserved ").to_owned())
    };
    if is_alone() {
        return drop((reserved(), reserved()));
    }
    lock.lock().unwrap();
    let usual = reserved();
    let _strict = match strict_accounting() {
        Ok(strict) => strict,
        Err(error) => return skip("vm.overcommit_memory can't be changed here", error),
    };
    assert_eq!(reserved(), usual);
}
