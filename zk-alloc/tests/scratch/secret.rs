//! The protections of a `SecretBuf`, by the kernel's account.
#![allow(unsafe_code, reason = "touches guarded memory on purpose")]

use std::os::unix::process::ExitStatusExt;

use crate::support::maps::map_of;
use crate::support::process::{give_up_root, in_a_fork, lockable_bytes};
use crate::support::{alone, child};
use zk_alloc::{MemoryRefused, SecretBuf};

const PAGE_BYTES: usize = 4096;

fn address(secret: &SecretBuf) -> usize {
    secret.as_ptr().addr()
}

/// Logs print values with `{:?}`.
#[test]
fn debug_prints_no_contents() {
    let secret = SecretBuf::from_slice(&[0xA5; 8]);
    let text = format!("{secret:?} {secret:#?}");
    assert!(text.contains("len: 8"), "{text}");
    assert!(!text.contains("165") && !text.to_lowercase().contains("a5"), "{text}");
}

/// A length that overflows when it is rounded up to whole pages must not return a small buffer.
#[test]
fn a_length_larger_than_any_memory_is_refused() {
    for len in [usize::MAX, usize::MAX - PAGE_BYTES, isize::MAX as usize, isize::MAX as usize - 2 * PAGE_BYTES, 1 << 60]
    {
        let Err(MemoryRefused { asked_bytes, .. }) = SecretBuf::try_zeroed(len) else {
            panic!("{len} bytes were given")
        };
        assert_eq!(asked_bytes, len);
    }
}

/// The kernel may refuse each protection, and the buffer then says that it lacks it. Its answer must match the kernel's
/// account.
#[test]
fn the_kernel_locks_a_secret_and_leaves_it_out_of_dumps_and_children() {
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

/// Pages that stay mapped can be read through any pointer to them.
#[test]
fn a_dropped_buffer_is_no_longer_mapped() {
    alone!();
    // In a process of its own, so that no other thread maps memory there.
    let secret = SecretBuf::from_slice(&[0xA5; 5 * PAGE_BYTES]);
    let start = address(&secret);
    assert!(map_of(start).is_some());
    drop(secret);
    for at in (start - PAGE_BYTES..start + 6 * PAGE_BYTES).step_by(PAGE_BYTES) {
        assert!(map_of(at).is_none(), "{:?}", map_of(at));
    }
}

/// A read past the end of a neighbour, for example in a C library, must not run on into the secret. It ends the
/// process.
#[test]
fn reading_past_either_end_ends_the_process() {
    for offset in [-1, PAGE_BYTES as isize] {
        let ended = child(&[], || {
            let secret = SecretBuf::zeroed(PAGE_BYTES);
            // SAFETY: the address is not valid on purpose: the process must end here.
            unsafe { secret.as_ptr().wrapping_offset(offset).read_volatile() };
        });
        assert!(ended.is_none_or(|ended| ended.status.signal() == Some(libc::SIGSEGV)), "byte {offset} was read");
    }
}

/// A child copies the parent's memory, including secrets, and is outside the parent's control. It may dump core, or run
/// another program.
#[test]
fn a_child_of_fork_finds_zeroes_and_the_parent_keeps_its_secret() {
    let secret = SecretBuf::from_slice(&[0xA5; 3 * PAGE_BYTES]);
    let start = secret.as_ptr();
    // SAFETY: within the buffer, of which the child has a copy.
    let is_zero = || (0..3 * PAGE_BYTES).all(|at| unsafe { start.add(at).read_volatile() } == 0);
    assert_eq!(in_a_fork(|| u8::from(!is_zero())), 0, "the child read a secret");
    assert!(secret.iter().all(|&byte| byte == 0xA5));
}

/// Containers often allow no locked memory at all. A prover must run there too, and must be able to find out.
#[test]
fn without_memory_to_lock_a_buffer_works_and_says_that_it_is_not_locked() {
    alone!();
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: only restricts this process, in which nothing else runs. The limit does not apply to root.
    assert!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) } == 0 && give_up_root());
    let secret = SecretBuf::from_slice(&[0xA5; PAGE_BYTES]);
    assert!(!secret.is_locked() && !map_of(address(&secret)).unwrap().has("lo"));
    assert!(secret.is_left_out_of_dumps() && secret.is_wiped_on_fork());
    assert!(secret.iter().all(|&byte| byte == 0xA5));
}
