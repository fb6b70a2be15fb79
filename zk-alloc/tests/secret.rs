//! What protects a `SecretBuf`, by the kernel's account.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "forks, and touches what must not be touched")]

#[path = "support/limits.rs"]
mod limits;
#[path = "support/maps.rs"]
mod maps;
mod support;

use std::os::unix::process::ExitStatusExt;
use std::thread;

use limits::lockable_bytes;
use maps::map_of;
use support::{alone, is_alone};
use zk_alloc::{MemoryRefused, SecretBuf, ZkAllocator};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator::resident();

const PAGE_BYTES: usize = 4096;

fn address(secret: &SecretBuf) -> usize {
    secret.as_ptr().addr()
}

#[test]
fn lengths_and_contents_are_those_asked_for() {
    for len in [0, 1, 31, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 300_000] {
        let mut secret = SecretBuf::zeroed(len);
        assert_eq!(secret.len(), len);
        assert!(secret.iter().all(|&byte| byte == 0));
        secret.fill(0xA5);
        let copy = SecretBuf::from_slice(&secret);
        assert_eq!(*copy, *secret);
        assert!(address(&copy).is_multiple_of(PAGE_BYTES));
    }
}

/// Logs print what they are given with `{:?}`.
#[test]
fn debug_prints_no_contents() {
    let secret = SecretBuf::from_slice(&[0xA5; 8]);
    let text = format!("{secret:?} {secret:#?}");
    assert!(text.contains("len: 8"), "{text}");
    assert!(!text.contains("165") && !text.to_lowercase().contains("a5"), "{text}");
}

#[test]
fn a_secret_may_be_shared_with_and_moved_to_another_thread() {
    let mut secret = SecretBuf::from_slice(b"shared");
    thread::scope(|scope| {
        let seen = scope.spawn(|| secret.to_vec());
        assert_eq!(seen.join().unwrap(), *secret);
    });
    secret = thread::spawn(move || secret).join().unwrap();
    assert_eq!(*secret, *b"shared");
}

/// A length that overflows on its way to whole pages must not come back as a small buffer.
#[test]
fn a_length_beyond_all_memory_is_refused_with_what_was_asked() {
    for len in [usize::MAX, usize::MAX - PAGE_BYTES, isize::MAX as usize, isize::MAX as usize - 2 * PAGE_BYTES, 1 << 60]
    {
        let Err(MemoryRefused { asked_bytes, .. }) = SecretBuf::try_zeroed(len) else {
            panic!("{len} bytes were given")
        };
        assert_eq!(asked_bytes, len);
    }
}

/// Each protection is the kernel's to refuse, and a buffer that goes without says so: what it says must be what the kernel
/// says.
#[test]
fn the_kernel_locks_it_and_leaves_it_out_of_dumps_and_children() {
    let secret = SecretBuf::zeroed(2 * PAGE_BYTES + 1);
    let map = map_of(address(&secret)).unwrap();
    assert_eq!(map.access, "rw-p");
    assert_eq!(map.has("lo"), secret.is_locked(), "{map:?}");
    // All tests of this binary together hold less than that.
    assert!(secret.is_locked() || lockable_bytes() < 1 << 20, "{map:?}");
    assert!(map.has("dd") && secret.is_left_out_of_dumps(), "{map:?}");
    assert!(map.has("wf") && secret.is_wiped_on_fork(), "{map:?}");
    for guard in [address(&secret) - 1, address(&secret) + 3 * PAGE_BYTES] {
        assert_eq!(map_of(guard).unwrap().access, "---p");
    }
}

/// Pages that stay mapped stay readable by whoever finds a pointer to them.
#[test]
fn a_dropped_buffer_is_no_longer_mapped() {
    let name = "a_dropped_buffer_is_no_longer_mapped";
    if !is_alone() {
        return alone(name, &[]).assert_passed(name);
    }
    // Alone, so that no other thread's mapping takes the place.
    let secret = SecretBuf::from_slice(&[0xA5; 5 * PAGE_BYTES]);
    let start = address(&secret);
    assert!(map_of(start).is_some());
    drop(secret);
    for at in (start - PAGE_BYTES..start + 6 * PAGE_BYTES).step_by(PAGE_BYTES) {
        assert!(map_of(at).is_none(), "{:?}", map_of(at));
    }
}

/// A read past the end of a neighbour, in a library in C for one, must not run on into the secret: it ends the process.
#[test]
fn a_run_past_either_end_is_stopped() {
    let name = "a_run_past_either_end_is_stopped";
    if !is_alone() {
        for end in ["before", "after"] {
            let ended = alone(name, &[("TOUCH", end.as_ref())]);
            assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{ended:?}");
        }
        return;
    }
    let secret = SecretBuf::zeroed(PAGE_BYTES);
    let beyond = match std::env::var("TOUCH").as_deref() {
        Ok("before") => secret.as_ptr().wrapping_sub(1),
        Ok("after") => secret.as_ptr().wrapping_add(PAGE_BYTES),
        other => panic!("TOUCH={other:?}"),
    };
    // SAFETY: none: the process is to end here.
    unsafe { beyond.read_volatile() };
}

/// A child copies the parent's memory, secrets and all, and lives by its own rules: it may dump core, or be another program
/// before long.
#[test]
fn a_child_of_fork_finds_zeroes_and_the_parent_keeps_its_secret() {
    let secret = SecretBuf::from_slice(&[0xA5; 3 * PAGE_BYTES]);
    let start = secret.as_ptr();
    // SAFETY: the child reads memory and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: within the buffer, of which the child has a copy.
        let zeroes = (0..3 * PAGE_BYTES).all(|at| unsafe { start.add(at).read_volatile() } == 0);
        // SAFETY: ends the process, without destructors.
        unsafe { libc::_exit(if zeroes { 0 } else { 1 }) };
    }
    assert!(pid > 0, "no process: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: a child of ours, and a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child read a secret: status {status:#x}");
    assert!(secret.iter().all(|&byte| byte == 0xA5));
}

/// Containers often allow no locked memory at all: a prover must run there too, and be able to know.
#[test]
fn without_memory_to_lock_a_buffer_works_and_says_that_it_is_not_locked() {
    let name = "without_memory_to_lock_a_buffer_works_and_says_that_it_is_not_locked";
    if !is_alone() {
        return alone(name, &[]).assert_passed(name);
    }
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both only take something away from this process, in which nothing else runs. Root may lock whatever the limit
    // says, so this process is no longer root.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::setresuid(65534, 65534, 65534), 0);
        }
    }
    let secret = SecretBuf::from_slice(&[0xA5; PAGE_BYTES]);
    assert!(!secret.is_locked() && !map_of(address(&secret)).unwrap().has("lo"));
    assert!(secret.is_left_out_of_dumps() && secret.is_wiped_on_fork());
    assert!(secret.iter().all(|&byte| byte == 0xA5));
}
