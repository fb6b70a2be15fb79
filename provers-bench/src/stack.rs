//! Makes the stacks of a proof begin at the same offset within a page in every arm.
//!
//! The address at which the stack starts can change a prover's time by up to 4% if it keeps vectors on the stack. It determines which
//! vectors straddle cache lines, and which data share an offset within a page. By default a stack begins at the end of the program's
//! thread-local memory, whose size depends on the allocator. Without this module, an allocator could win or lose for reasons that have
//! nothing to do with allocation (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!", ASPLOS 2009).
#![allow(unsafe_code, reason = "moves the stack pointer")]

use anyhow::Context;
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};
use std::io;
use std::thread;

/// The offset within a page, in bytes, at which stacks begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u16);

impl Place {
    /// Reduces `bytes` to an offset within a page, rounded down to the stack's alignment.
    pub(crate) fn new(bytes: u16) -> Self {
        Self(bytes & (PAGE_BYTES - 1) & !(ALIGN_BYTES - 1))
    }

    /// Calls `run` with the stack pointer moved down to this offset within a page. On processors other than x86-64 and AArch64, just calls
    /// `run`.
    pub(crate) fn begin<T>(self, run: impl FnOnce() -> T) -> T {
        let mut run = Some(run);
        let mut result = None;
        self.call(&mut || result = run.take().map(|run| run()));
        // `call` calls its argument exactly once.
        result.expect("it was called")
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn call(self, mut run: &mut dyn FnMut()) {
        unsafe extern "C-unwind" fn enter(run: *mut std::ffi::c_void) {
            // SAFETY: `call` passes a pointer that is valid until this function returns.
            let run = unsafe { &mut *run.cast::<&mut dyn FnMut()>() };
            run();
        }
        // SAFETY: `enter` accepts this argument, `Place::new` rounds the offset to a multiple of 16 below a page, and the stack has room
        // for two more pages.
        unsafe { call_at(enter, (&raw mut run).cast(), usize::from(self.0)) }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn call(self, run: &mut dyn FnMut()) {
        run();
    }

    /// Builds the global Rayon pool, which the prover uses.
    pub(crate) fn build_pool(self) -> anyhow::Result<()> {
        builder().spawn_handler(self.spawn()).build_global().context("cannot start the prover's threads")
    }

    /// Builds a separate pool for a proof.
    pub(crate) fn own_pool(self) -> anyhow::Result<ThreadPool> {
        builder().spawn_handler(self.spawn()).build().context("cannot start a pool for a proof")
    }

    /// Returns a function that starts a pool's threads with their stacks at this offset.
    fn spawn(self) -> impl Fn(ThreadBuilder) -> io::Result<()> {
        move |worker| thread::Builder::new().spawn(move || self.begin(|| worker.run())).map(drop)
    }
}

/// Returns a builder for a pool like the one that the adapters build.
fn builder() -> ThreadPoolBuilder {
    ThreadPoolBuilder::new().start_handler(|_| zk_alloc::pool::register_worker())
}

/// The smallest page size, in bytes. Larger pages need no larger offsets, because cache conflicts repeat at multiples of this size there
/// too.
const PAGE_BYTES: u16 = 4096;
/// The stack alignment of x86-64 and AArch64, in bytes.
const ALIGN_BYTES: u16 = 16;

/// Calls `run` with `argument`, after moving the stack pointer to `bytes` below a page boundary. Unwinders find the caller's frame through
/// the frame pointer.
///
/// # Safety
/// `run` must accept `argument`. `bytes` must be a multiple of 16 and less than a page, and the stack must have room for two more pages.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[unsafe(naked)]
unsafe extern "C-unwind" fn call_at(
    run: unsafe extern "C-unwind" fn(*mut std::ffi::c_void),
    argument: *mut std::ffi::c_void,
    bytes: usize,
) {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "and rsp, -{page}",
        "sub rsp, rdx",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        page = const PAGE_BYTES,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov x9, sp",
        "and x9, x9, #-{page}",
        "sub x9, x9, x2",
        "mov sp, x9",
        "mov x9, x0",
        "mov x0, x1",
        "blr x9",
        "mov sp, x29",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa sp, 0",
        "ret",
        ".cfi_endproc",
        page = const PAGE_BYTES,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::panic;

    /// Returns the offset within a page of this function's local variable.
    #[inline(never)]
    fn place_of_a_variable() -> usize {
        let variable = black_box(0_u64);
        (&raw const variable).addr() % usize::from(PAGE_BYTES)
    }

    #[test]
    fn stacks_of_any_size_begin_at_the_requested_offset() {
        for bytes in [0, 16, 1040, 4080] {
            let on_a_stack_of = |kib: usize| {
                let thread = thread::Builder::new().stack_size(kib << 10);
                thread.spawn(move || Place::new(bytes).begin(place_of_a_variable)).unwrap().join().unwrap()
            };
            let places = [64, 68, 2048].map(on_a_stack_of);
            assert!(places.iter().all(|&place| place == places[0]), "{bytes}: {places:?}");
            if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
                let (begin, page) = (usize::from(PAGE_BYTES - bytes), usize::from(PAGE_BYTES));
                let below = (begin + page - places[0]) % page;
                assert!(below < 1024, "{bytes}: a variable lies {below} bytes below {begin}");
            }
        }
    }

    #[test]
    fn code_on_a_moved_stack_returns_panics_and_unwinds_normally() {
        let text = String::from("moved in");
        assert_eq!(Place::new(48).begin(move || text + ", and out"), "moved in, and out");
        let caught = panic::catch_unwind(|| Place::new(2064).begin(|| panic::resume_unwind(Box::new(7_u8))));
        assert_eq!(*caught.unwrap_err().downcast::<u8>().unwrap(), 7);
        // Walks the stack.
        let trace = Place::new(4080).begin(|| std::backtrace::Backtrace::force_capture().to_string());
        assert!(trace.contains("code_on_a_moved_stack_returns_panics_and_unwinds_normally"), "{trace}");
    }
}
