//! Helpers for all test binaries: buffers with a known pattern, tests that run in a process of their own, and the kernel's counters for a
//! process.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test binary uses its part")]

use std::cell::Cell;
use std::hint::black_box;
use std::process::{Command, ExitStatus};
use std::sync::Barrier;
use std::thread;

pub(crate) mod blocks;
#[cfg(target_os = "linux")]
pub(crate) mod maps;
#[cfg(target_os = "linux")]
pub(crate) mod process;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) mod seccomp;

/// The variable that is set in a process that [`child_as`] starts to run one test. Its value is the number of the call that started the
/// process.
const ALONE: &str = "ZK_ALLOC_TEST_ALONE";
/// Number of seconds after which an alarm kills a process that hangs. No test takes this long, even on a busy machine.
const PATIENCE_S: u32 = 120;

/// Returns `len` numbers that depend on the seed. The optimiser can't remove the vector, even if nothing reads it.
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

/// Overwrites free memory of many sizes. A test then fails if the allocator has handed out memory that is still in use.
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

/// Patterned buffers, which are replaced one by one and checked. No method panics if a check fails, because a panic takes locks.
pub(crate) struct Kept(Vec<(u64, Vec<u64>)>);

impl Kept {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a buffer with one of `lengths` (in words), or replaces a random buffer with it. There are never more than `most` buffers.
    /// Returns `false` if the contents of the replaced buffer have changed.
    pub(crate) fn replace(&mut self, numbers: &mut Numbers, most: usize, lengths: &[usize]) -> bool {
        let (at, seed) = (numbers.below(most), numbers.below(1 << 20) as u64);
        let new = (seed, patterned(lengths[numbers.below(lengths.len())], seed));
        if at >= self.0.len() {
            self.0.push(new);
            return true;
        }
        let (seed, words) = std::mem::replace(&mut self.0[at], new);
        is_patterned(&words, seed)
    }

    /// Frees all buffers. Returns `false` if any of them has changed.
    pub(crate) fn drain(&mut self) -> bool {
        self.0.drain(..).all(|(seed, words)| is_patterned(&words, seed))
    }
}

/// Starts `count` threads with small stacks, each of which calls `work`. When all of them have done so and are idle, calls `meanwhile`.
/// Then each thread calls `after` and exits. When this function returns, the destructors of their thread-locals have run.
pub(crate) fn beside_idle_threads<R>(
    count: usize,
    work: impl Fn() + Sync,
    meanwhile: impl FnOnce() -> R,
    after: impl Fn() + Sync,
) -> R {
    let (worked, done) = (Barrier::new(count + 1), Barrier::new(count + 1));
    let idle = || {
        work();
        worked.wait();
        done.wait();
        after();
    };
    thread::scope(|scope| {
        let small = || thread::Builder::new().stack_size(64 << 10);
        let threads: Vec<_> = (0..count).map(|_| small().spawn_scoped(scope, idle).expect("a thread")).collect();
        worked.wait();
        let result = meanwhile();
        done.wait();
        threads.into_iter().for_each(|thread| thread.join().expect("a thread of the test"));
        result
    })
}

/// Returns whether this process was started by [`child`].
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// The variable that allows tests to change settings of the machine temporarily. If it is set, tests that lack the rights to do this fail.
const HOST: &str = "ZK_ALLOC_TEST_HOST";

pub(crate) fn may_change_host() -> bool {
    std::env::var_os(HOST).is_some()
}

/// Prints why a test can't run here. Fails if `ZK_ALLOC_TEST_HOST` is set, because then the test must run.
#[track_caller]
pub(crate) fn skip(what: &str, reason: impl std::fmt::Display) {
    assert!(!may_change_host(), "{what}, though {HOST} is set: {reason}");
    println!("skipped: {what}: {reason}");
}

/// Returns whether requests of every size go to the arena in this process.
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
    /// Returns the messages that the allocator wrote to standard error.
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

    /// Returns the text after `name` in the first line of standard output that contains it.
    pub(crate) fn printed(&self, name: &str) -> &str {
        let line = self.stdout.lines().find_map(|line| line.split_once(name));
        line.unwrap_or_else(|| panic!("{name} was not printed: {self:?}")).1
    }
}

/// Environment variables of a process.
pub(crate) type Settings<'a> = &'a [(&'a str, &'a str)];

/// The variable that makes the allocator assume that the host does not report free memory to a hypervisor, so it uses huge pages on virtual
/// machines too.
pub(crate) const BARE_METAL: &str = "ZK_ALLOC_TEST_BARE_METAL";
/// A child inherits variables with this prefix, so `ZK_ALLOC_PROFILE=1` turns on sampling in all tests.
const PROFILE: &str = "ZK_ALLOC_PROFILE";

thread_local! {
    /// The number of times that the test on this thread has called [`child_as`].
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Runs the current thread's test again, in a child process. Its only `ZK_ALLOC_*` variables are `settings`, [`BARE_METAL`] and those that
/// begin with [`PROFILE`]. In the child, the same call runs `body`, and all calls return `None`. In the parent, returns how the child
/// ended.
pub(crate) fn child(settings: Settings, body: impl FnOnce()) -> Option<Ended> {
    child_as(settings, |_| (), body)
}

/// Like [`child`], but `prepare` may change the command that starts the process.
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
    end_after_patience(&mut command);
    prepare(&mut command);
    let output = command.output().expect("a process");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    Some(Ended { what: format!("{name} {settings:?}"), status: output.status, stdout, stderr })
}

#[allow(unsafe_code, reason = "sets an alarm before exec, which keeps it")]
fn end_after_patience(_command: &mut Command) {
    #[cfg(unix)]
    // SAFETY: between fork and exec, the closure makes one call, which neither allocates nor locks.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(_command, || Ok(_ = libc::alarm(PATIENCE_S)));
    }
}

/// Runs `body` in a process of its own with these settings. Fails if the process fails. Prints what the process skipped.
#[track_caller]
pub(crate) fn in_its_own_process(settings: Settings, body: impl FnOnce()) {
    let Some(ended) = child(settings, body) else { return };
    for (_, what) in ended.stdout.lines().filter_map(|line| line.split_once("skipped: ")) {
        println!("{}: skipped: {what}", ended.what);
    }
    ended.assert_passed();
}

/// Runs `body` in a process of its own with these settings. Fails if the process fails or writes a warning.
#[track_caller]
pub(crate) fn without_warnings(settings: Settings, body: impl FnOnce()) {
    child(settings, body).iter().for_each(Ended::assert_passed_without_warnings);
}

/// Runs `body` in a process of its own with these settings. Fails unless the process succeeds and writes exactly one warning, which
/// contains these words.
#[track_caller]
pub(crate) fn with_one_warning(settings: Settings, words: &[&str], body: impl FnOnce()) {
    let Some(ended) = child(settings, body) else { return };
    ended.assert_passed();
    let [warning] = ended.warnings()[..] else { panic!("{ended:?}") };
    assert!(words.iter().all(|word| warning.contains(word)), "{ended:?}");
}

/// Runs the calling test in a process of its own for each list of settings. Returns `true` in such a process, and `false` in the parent
/// once they have ended.
#[track_caller]
pub(crate) fn is_alone_with(all: &[Settings]) -> bool {
    let mut is_here = false;
    all.iter().for_each(|settings| in_its_own_process(settings, || is_here = true));
    is_here
}

/// Runs the rest of the function in a process of its own, once with the given settings, or after `each`, once for each list of settings.
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

/// Returns the value of a field in a file of `/proc`, such as `VmRSS` in `/proc/self/status`.
pub(crate) fn field(file: impl AsRef<std::path::Path>, name: &str) -> String {
    let text = std::fs::read_to_string(file).expect("Linux has it");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("the field");
    line.trim().to_owned()
}

/// Returns the value in bytes of a field in `/proc/{file}`, where `file` is, for example, `self/status`.
pub(crate) fn kernel_bytes(file: &str, name: &str) -> usize {
    let kib = field(format!("/proc/{file}"), name);
    kib.trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

/// Returns the size in bytes of this process's resident anonymous memory.
pub(crate) fn rss_bytes() -> usize {
    kernel_bytes("self/status", "RssAnon")
}

/// Resets the peak that [`peak_rss_bytes`] returns. Returns the current resident size.
pub(crate) fn restart_peak() -> usize {
    // If the kernel refuses, the old peak remains. It is small if the process has not done anything yet.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    kernel_bytes("self/status", "VmRSS")
}

/// Returns the peak resident size in bytes, including pages of code.
pub(crate) fn peak_rss_bytes() -> usize {
    kernel_bytes("self/status", "VmHWM")
}

/// Returns the size of locked memory, in bytes.
pub(crate) fn locked_bytes() -> usize {
    kernel_bytes("self/status", "VmLck")
}

/// Returns the total size of all mappings, in bytes.
pub(crate) fn address_space_bytes() -> usize {
    kernel_bytes("self/status", "VmSize")
}
