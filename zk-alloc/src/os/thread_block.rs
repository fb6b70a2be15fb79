//! A few bytes of thread-local memory, accessed without a call.
//!
//! In a shared library, `thread_local!` compiles to a call into the dynamic loader (`__tls_get_addr`), which may call `malloc`. If that
//! `malloc` is ours and reads thread-local memory itself, the recursion never ends. In the *initial-exec* model, the code instead adds a
//! constant from the library's global offset table to the thread pointer. Stable Rust can't select that model, so the bytes are declared and
//! accessed in assembly.
//!
//! The drawback is in `dlopen`: the loader has to find room for the bytes in the spare thread-local memory of each thread. If none is left,
//! it refuses to load the library.
#![allow(unsafe_code, reason = "thread-local memory in assembly")]

use std::arch::{asm, global_asm};
use std::ptr::NonNull;

/// The length of the block, in bytes. The block is zeroed when the thread begins, and aligned to 16 bytes.
pub(crate) const THREAD_BLOCK_BYTES: usize = 48;

global_asm!(
    ".pushsection .tbss.zk_alloc_thread_block, \"awT\", %nobits",
    ".p2align 4",
    ".globl zk_alloc_thread_block",
    ".hidden zk_alloc_thread_block",
    ".type zk_alloc_thread_block, %tls_object",
    ".size zk_alloc_thread_block, {bytes}",
    "zk_alloc_thread_block:",
    ".zero {bytes}",
    ".popsection",
    bytes = const THREAD_BLOCK_BYTES,
);

/// Returns the calling thread's block, which lasts as long as the thread.
#[inline(always)]
pub(crate) fn thread_block() -> NonNull<u8> {
    let at: *mut u8;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the code reads the thread pointer, which each thread has at its own offset 0, and the constant that the loader or the linker
    // wrote. Neither changes while the thread lives.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + zk_alloc_thread_block@GOTTPOFF]",
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the thread pointer is in a register.
    unsafe {
        asm!(
            "mrs {at}, tpidr_el0",
            "adrp {offset}, :gottprel:zk_alloc_thread_block",
            "ldr {offset}, [{offset}, :gottprel_lo12:zk_alloc_thread_block]",
            "add {at}, {at}, {offset}",
            at = out(reg) at,
            offset = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: thread-local memory is never at address 0.
    unsafe { NonNull::new_unchecked(at) }
}
