//! Shared by the tests of the hazards: patterns in memory, processes of their own, and figures of the process.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test binary uses its part")]

use std::cell::Cell;
use std::hint::black_box;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) mod blocks;
#[cfg(target_os = "linux")]
pub(crate) mod forks;
#[cfg(target_os = "linux")]
pub(crate) mod limits;
#[cfg(target_os = "linux")]
pub(crate) mod maps;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod seccomp;
#[cfg(target_os = "linux")]
pub(crate) mod tasks;

/// Set in a process that runs one test alone. Its value is the number of the call that started the process.
const ALONE: &str = "ZK_ALLOC_TEST_ALONE";
/// Longer than any test takes on a busy machine. A process that hangs is killed then.
const PATIENCE: Duration = Duration::from_secs(120);

/// `len` numbers that no other seed produces. The optimiser can't leave the vector out, even if nobody reads it.
pub(crate) fn patterned(len: usize, seed: u64) -> Vec<u64> {
    black_box((0..len as u64).map(|i| mix(seed, i)).collect())
}

pub(crate) fn is_patterned(values: &[u64], seed: u64) -> bool {
    values.iter().zip(0..).all(|(&value, i)| value == mix(seed, i))
}

#[track_caller]
pub(crate) fn assert_patterned(values: &[u64], seed: u64) {
    if let Some(at) = values.iter().zip(0..).position(|(&value, i)| value != mix(seed, i)) {
        panic!("overwritten: word {at} of {} of the pattern {seed} is {:#x}", values.len(), values[at]);
    }
}

fn mix(seed: u64, i: u64) -> u64 {
    (i ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed
}

/// Overwrites free memory, so that a test that still uses freed memory notices.
pub(crate) fn scribble() {
    for len in [64usize, 1 << 9, 1 << 10, 1 << 12, 1 << 13, 1 << 16, 1 << 18] {
        let junk: Vec<_> = (0..16).map(|_| black_box(vec![u64::MAX; len / 8])).collect();
        assert!(junk.iter().flatten().all(|&word| word == u64::MAX));
    }
}

/// Pseudo-random numbers, the same in every run (xorshift64*).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(1, seed) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// Whether this process was started by [`child`].
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Allows tests to change settings of the machine for a moment. Tests that lack the rights then fail.
const HOST: &str = "ZK_ALLOC_TEST_HOST";

pub(crate) fn may_change_host() -> bool {
    std::env::var_os(HOST).is_some()
}

/// Says why a test can't run here. Fails if `ZK_ALLOC_TEST_HOST` is set, because then it must run.
#[track_caller]
pub(crate) fn skip(what: &str, reason: impl std::fmt::Display) {
    assert!(!may_change_host(), "{what}, though {HOST} is set: {reason}");
    println!("skipped: {what}: {reason}");
}

/// Whether requests of every size go to the arena in this process.
pub(crate) fn small_nodes_too() -> bool {
    std::env::var_os("ZK_ALLOC_MIN_BYTES").is_none_or(|value| value == "0")
}

/// How a process ended, and its output.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The test and its settings.
    what: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The lines that the allocator wrote.
    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("zk-alloc: ")).collect()
    }

    #[track_caller]
    pub(crate) fn assert_passed(&self) {
        let passed = self.status.success() && self.stdout.contains("1 passed");
        assert!(passed, "{}: {}\n{}\n{}", self.what, self.status, self.stdout, self.stderr);
    }

    #[track_caller]
    pub(crate) fn assert_passed_without_warnings(&self) {
        self.assert_passed();
        assert!(self.warnings().is_empty(), "{self:?}");
    }

    /// The text behind `name` in a line that the process printed.
    pub(crate) fn printed(&self, name: &str) -> &str {
        let line = self.stdout.lines().find_map(|line| line.split_once(name));
        line.unwrap_or_else(|| panic!("{name} was not printed: {self:?}")).1
    }
}

/// Variables of a process.
pub(crate) type Settings<'a> = &'a [(&'a str, &'a str)];

/// Makes the allocator treat a virtual machine like a host that does not report free memory to a hypervisor, so that it
/// uses huge pages.
pub(crate) const BARE_METAL: &str = "ZK_ALLOC_TEST_BARE_METAL";
/// Variables that begin so are for the tests, too: under `ZK_ALLOC_PROFILE=1`, all of them run with sampling on.
const PROFILE: &str = "ZK_ALLOC_PROFILE";

thread_local! {
    /// The calls of [`child_as`] by the test on this thread.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Runs the test on this thread again in a process of its own, with `settings` as its only `ZK_ALLOC_*` variables. There this call
/// runs `body`, and all calls return `None`.
pub(crate) fn child(settings: Settings, body: impl FnOnce()) -> Option<Ended> {
    child_as(settings, |_| (), body)
}

/// As [`child`], with a command that `prepare` has changed.
pub(crate) fn child_as(settings: Settings, prepare: impl FnOnce(&mut Command), body: impl FnOnce()) -> Option<Ended> {
    let call = CALLS.replace(CALLS.get() + 1).to_string();
    if let Some(own) = std::env::var_os(ALONE) {
        if own == *call {
            body();
        }
        return None;
    }
    let thread = thread::current();
    let name = thread.name().expect("the harness names the thread of a test");
    let mut command = Command::new(std::env::current_exe().expect("a test binary knows its path"));
    for (inherited, _) in std::env::vars_os() {
        let variable = inherited.to_string_lossy();
        if variable.starts_with("ZK_ALLOC_") && variable != BARE_METAL && !variable.starts_with(PROFILE) {
            command.env_remove(inherited);
        }
    }
    command.args([name, "--exact", "--nocapture"]).env(ALONE, call).envs(settings.iter().copied());
    prepare(&mut command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
    let stdout = read_all(child.stdout.take());
    let stderr = read_all(child.stderr.take());
    let started = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child of ours") {
            Some(status) => break status,
            None if started.elapsed() > PATIENCE => {
                let _ = child.kill();
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = |bytes: thread::JoinHandle<Vec<u8>>| String::from_utf8_lossy(&bytes.join().unwrap()).into_owned();
    Some(Ended { what: format!("{name} {settings:?}"), status, stdout: text(stdout), stderr: text(stderr) })
}

fn read_all(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.expect("piped").read_to_end(&mut bytes).expect("readable");
        bytes
    })
}

/// Runs `body` in a process of its own with these settings, and prints its measurements.
#[track_caller]
pub(crate) fn in_its_own_process(settings: Settings, body: impl FnOnce()) {
    let Some(ended) = child(settings, body) else { return };
    ended
        .stdout
        .lines()
        .filter_map(|line| line.split_once("measured "))
        .for_each(|(_, what)| println!("{}: {what}", ended.what));
    ended.assert_passed();
}

/// Whether this is a process that runs the calling test alone. If not, runs the test in a process of its own for each list of settings.
#[track_caller]
pub(crate) fn is_alone_with(all: &[Settings]) -> bool {
    let mut is_here = false;
    all.iter().for_each(|settings| in_its_own_process(settings, || is_here = true));
    is_here
}

/// Runs the rest of the function in a process of its own, with these settings or with each list of several.
macro_rules! alone {
    () => {
        alone!(each & [&[]])
    };
    (each $all:expr) => {
        if !$crate::support::is_alone_with($all) {
            return;
        }
    };
    ($settings:expr) => {
        alone!(each & [$settings])
    };
}
pub(crate) use alone;

/// With the default threshold, the arena serves the small nodes of libraries. With a threshold of 1 KiB, the backing allocator does.
pub(crate) const THRESHOLDS: &[Settings] = &[&[], &[("ZK_ALLOC_MIN_BYTES", "1024")]];

/// The resident bytes of this process, by the kernel's account.
#[cfg(target_os = "linux")]
pub(crate) fn rss_bytes() -> usize {
    field_bytes("/proc/self/status", "RssAnon:")
}

/// The bytes that a process adds to the memory in use, this one's without an id: a page that several processes share counts in parts.
#[cfg(target_os = "linux")]
pub(crate) fn pss_bytes(pid: Option<i32>) -> usize {
    let process = pid.map_or("self".into(), |pid| pid.to_string());
    field_bytes(&format!("/proc/{process}/smaps_rollup"), "Pss:")
}

/// Has [`peak_rss_bytes`] count from here on. Returns the resident size now.
#[cfg(target_os = "linux")]
pub(crate) fn restart_peak() -> usize {
    // If the kernel refuses, the peak so far remains, which is small in a process that has done nothing yet.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    field_bytes("/proc/self/status", "VmRSS:")
}

/// The largest resident size of this process, including pages of code.
#[cfg(target_os = "linux")]
pub(crate) fn peak_rss_bytes() -> usize {
    field_bytes("/proc/self/status", "VmHWM:")
}

/// Bytes of address space of this process.
#[cfg(target_os = "linux")]
pub(crate) fn address_space_bytes() -> usize {
    field_bytes("/proc/self/status", "VmSize:")
}

/// Bytes of this process that lie in huge pages.
#[cfg(target_os = "linux")]
pub(crate) fn huge_page_bytes() -> usize {
    field_bytes("/proc/self/smaps_rollup", "AnonHugePages:")
}

#[cfg(target_os = "linux")]
fn field_bytes(file: &str, field: &str) -> usize {
    let text = std::fs::read_to_string(file).expect("Linux has it");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}
