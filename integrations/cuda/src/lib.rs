#![doc = include_str!("../README.md")]
#![allow(unsafe_code, reason = "calls the driver")]

use std::error::Error;
use std::mem::forget;

use cudarc::driver::{CudaContext, sys};
use libloading::Library;
use zk_alloc::{NotPinned, Pinned};

// Compiles only against this allocator, not against the crate `zk-alloc` on crates.io.
const _: () = zk_alloc::REUSES_ONLY_WHAT_WAS_FREED;

/// The file name of the driver's library. [`pin`] looks for this file itself, because `cudarc`'s own check is missing if another crate
/// enables its feature `dynamic-linking`.
const DRIVER: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Why memory could not be registered: no driver is installed, or the driver returned an error.
pub type CudaError = Box<dyn Error + Send + Sync>;

/// Makes `bytes` bytes of the arena resident and registers them with the driver of `device` (`cuMemHostRegister`, which `cudaHostRegister`
/// calls), for all contexts of the process. Returns a handle to this range (see [`Pinned`]).
///
/// # Errors
/// Fails if there is no driver or no such device, if the driver refuses the memory, or if the arena can't make that much memory resident.
///
/// # Safety
/// The program must not change, free or read a buffer before all copies from it or to it have finished. With pageable memory, the driver
/// ensures this: an asynchronous copy returns only after it has read or written the buffer. With registered memory, the copy returns at
/// once. The safe functions of cudarc 0.19 copy a `Vec` asynchronously and do not wait, so the caller must `synchronize` the stream after
/// each call.
pub unsafe fn pin(bytes: usize, device: usize) -> Result<Pinned, NotPinned<CudaError>> {
    let refused = |error| NotPinned::NotRegistered { asked_bytes: bytes, error };
    // Looks for a driver first: without one, cudarc panics, and faulting in the pages would be wasted work.
    // SAFETY: the initialisers of the driver's library are safe to run.
    unsafe { Library::new(DRIVER) }.map_err(|_| refused(format!("no CUDA driver is installed ({DRIVER})").into()))?;
    // The device's primary context, which the CUDA runtime also uses. It lives as long as the range.
    let context = CudaContext::new(device).map_err(|error| refused(error.into()))?;
    let registering = context.clone();
    let register = move |at: *mut u8, len| {
        registering.bind_to_thread()?;
        // SAFETY: the memory belongs to the range, which stays mapped until it is unregistered. cuMemHostRegister accepts this flag.
        unsafe { sys::cuMemHostRegister_v2(at.cast(), len, sys::CU_MEMHOSTREGISTER_PORTABLE) }.result()?;
        Ok(())
    };
    let unregister = move |at: *mut u8, _| {
        // SAFETY: the memory was registered above. No allocation is left in the range, so no copy from or to it is in progress.
        let unregister = || unsafe { sys::cuMemHostUnregister(at.cast()) }.result();
        let unregistered = context.bind_to_thread().and_then(|()| unregister());
        unregistered.inspect_err(|_| forget(context))
    };
    Pinned::new(bytes, register, unregister)
}

#[cfg(test)]
mod tests {
    use zk_alloc::{ZkAllocator, phase, pinned, stats};

    use super::pin;

    #[global_allocator]
    static ALLOC: ZkAllocator = ZkAllocator;

    /// If there is a device, checks instead that the range is registered and serves a buffer.
    #[test]
    fn without_a_device_nothing_is_pinned_and_the_error_says_why() {
        // SAFETY: nothing is copied to or from this range.
        match unsafe { pin(8 << 20, 0) } {
            Ok(range) => assert!(pinned::contains(phase(|| vec![7u64; 1 << 18]).as_ptr()) && range.bytes() == 8 << 20),
            Err(error) => {
                let message = error.to_string();
                let says_what = message.starts_with("8388608 bytes could not be registered: ");
                assert!(says_what && message.contains("CUDA"), "{message}");
            }
        }
        assert_eq!(stats().pinned_bytes, 0, "{}", stats());
    }
}
