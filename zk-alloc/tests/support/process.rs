//! Helpers that fork, start threads without Rust's standard library, install signal handlers, list tasks and set resource limits.
#![allow(unsafe_code, reason = "calls the C library")]

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of seconds after which an alarm kills a forked child that hangs. No child takes this long, even on a busy machine.
const PATIENCE_S: u32 = 40;

/// Starts a child that runs `work` and exits with its result. Returns the child's process ID.
///
/// `work` must not panic, because a panic takes locks that another thread may have held at the fork.
pub(crate) fn fork(work: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs only `work`, and exits without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: alarm(2) takes any number.
        unsafe { libc::alarm(PATIENCE_S) };
        let code = work();
        // SAFETY: `_exit` takes any code. The child exits without running destructors.
        unsafe { libc::_exit(code.into()) };
    }
    assert!(child > 0, "no process: {}", std::io::Error::last_os_error());
    child
}

/// Waits for a child and returns its exit code, or 1,000 plus the signal's number if a signal killed it.
pub(crate) fn code_of(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1_000 + libc::WTERMSIG(status) }
}

/// Runs `work` in a forked child and returns the child's exit code, as [`code_of`] does.
pub(crate) fn in_a_fork(work: impl FnOnce() -> u8) -> i32 {
    code_of(fork(work))
}

/// Returns the number of the first check that failed, counted from 1, or 0 if all hold.
pub(crate) fn first_failure(checks: &[bool]) -> u8 {
    checks.iter().position(|&holds| !holds).map_or(0, |index| index as u8 + 1)
}

/// Sets a flag when dropped, which stops the threads of [`beside`], even if its body panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Work that a thread repeats.
pub(crate) type Work<'a> = Box<dyn FnMut() + Send + 'a>;

/// Runs `body` while each of `works` is repeated on its own thread.
pub(crate) fn beside<'a, R>(works: impl IntoIterator<Item = Work<'a>>, body: impl FnOnce() -> R) -> R {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _at_end = StopAtEnd(stop);
        for mut work in works {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        body()
    })
}

/// Runs `child` in 40 forked children, while two threads repeat `work`. Fails unless each child exits with `code`.
pub(crate) fn fork_beside_threads(code: i32, work: impl FnMut() + Clone + Send, child: impl Fn() -> u8) {
    let works: [Work; 2] = [Box::new(work.clone()), Box::new(work)];
    beside(works, || (0..40).for_each(|_| assert_eq!(in_a_fork(&child), code)));
}

/// Returns the value of an environment variable without allocating. Must be called before other threads can change the environment.
pub(crate) fn variable(name: &CStr) -> Option<&'static str> {
    // SAFETY: `name` is a C string.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: the value in the environment is also a C string, and no thread changes it yet.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) });
    value?.to_str().ok()
}

/// Installs `handler` for a signal. Returns `false` if the system refuses it.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) -> bool {
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: `action` is valid, and the test ensures that its handler is safe to run.
    unsafe { libc::sigaction(signal, &raw const action, null_mut()) == 0 }
}

pub(crate) type Run = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a thread that calls `run` with `value`. Uses the C library, because Rust's standard library might allocate.
pub(crate) fn start_thread(run: Run, value: *mut c_void) -> Option<libc::pthread_t> {
    let mut thread = MaybeUninit::uninit();
    // SAFETY: `thread` is a valid place for the thread, and `run` is a function of its type. The place is written if the thread was
    // started.
    unsafe {
        let is_started = libc::pthread_create(thread.as_mut_ptr(), null(), run, value) == 0;
        is_started.then(|| thread.assume_init())
    }
}

/// Waits for a thread that [`start_thread`] started.
pub(crate) fn join_thread(thread: libc::pthread_t) {
    // SAFETY: `thread` is a thread of this process, which is joined only once.
    assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
}

/// Returns the directories in `/proc` of all tasks (threads) of this process.
pub(crate) fn tasks() -> Vec<PathBuf> {
    fs::read_dir("/proc/self/task").expect("Linux has it").map(|task| task.expect("an entry").path()).collect()
}

/// Returns the tasks that the allocator has started. Their names begin with `zk-alloc`.
pub(crate) fn ours() -> Vec<PathBuf> {
    let is_ours = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("zk-alloc"));
    tasks().into_iter().filter(is_ours).collect()
}

/// Calls `holds` every few milliseconds. Returns `true` as soon as it does, or `false` after 20 seconds.
pub(crate) fn soon(mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > Duration::from_secs(20) {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Returns whether the allocator soon has `count` tasks. A new thread needs a moment to set its name, and the kernel lists a joined thread
/// a little longer.
pub(crate) fn are_ours(count: usize) -> bool {
    soon(|| ours().len() == count)
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = c_int;

fn limit_of(resource: Resource) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut limit) }, 0);
    limit
}

/// Returns the number of bytes that this process may lock.
pub(crate) fn lockable_bytes() -> u64 {
    limit_of(libc::RLIMIT_MEMLOCK).rlim_cur
}

/// Runs `body` with a soft limit of `bytes` on a resource, then restores the old limit.
pub(crate) fn limited<R>(resource: Resource, bytes: usize, body: impl FnOnce() -> R) -> R {
    let old = limit_of(resource);
    let set = |limit: libc::rlimit| {
        // SAFETY: `limit` is a valid limit.
        assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    };
    set(libc::rlimit { rlim_cur: bytes as u64, ..old });
    let result = body();
    set(old);
    result
}

/// Runs `body` while the process can't get more private writable memory.
pub(crate) fn without_more_memory<R>(body: impl FnOnce() -> R) -> R {
    limited(libc::RLIMIT_DATA, 1, body)
}

/// If the process is root, switches to another user, because some limits do not apply to root. Returns `false` if the system refuses this.
pub(crate) fn give_up_root() -> bool {
    // SAFETY: the calls only change the user of this process, which does nothing else at the same time.
    unsafe { libc::geteuid() != 0 || libc::setresuid(65_534, 65_534, 65_534) == 0 }
}
