//! Registers a range where there is a device, and says why not where there is none.
#![allow(unsafe_code, reason = "promises to copy nothing")]

use zk_alloc::{ZkAllocator, phase, pinned, stats};
use zk_alloc_cuda::pin;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

#[test]
fn without_a_device_nothing_is_pinned_and_the_error_says_why() {
    // SAFETY: nothing is copied.
    match unsafe { pin(8 << 20, 0) } {
        Ok(range) => assert!(pinned::contains(phase(|| vec![7u64; 1 << 18]).as_ptr()) && range.bytes() == 8 << 20),
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("8388608 bytes could not be registered: ") && said.contains("CUDA"), "{said}");
        }
    }
    assert_eq!(stats().pinned_bytes, 0, "{}", stats());
}
