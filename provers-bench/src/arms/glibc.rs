//! The allocator of the C library: glibc's malloc on most Linux systems.

use super::arm::{Arm, Colour};
use super::installed::Installed;

/// The allocator's type.
pub type Allocator = std::alloc::System;

/// The value to install as the global allocator.
pub const ALLOCATOR: Allocator = std::alloc::System;

const PLAIN: Arm = Arm { colour: Colour { light: "#6f7782", dark: "#98a1ad" }, ..Arm::new("glibc", "with-glibc") };

pub(super) const ARMS: &[Arm] = &[
    PLAIN,
    Arm {
        name: "glibc-tuned",
        environment: &[("GLIBC_TUNABLES", RETAINS)],
        confirms: &[("retains 256 MiB", "yes")],
        ..PLAIN
    },
];

/// Makes glibc retain all memory: it maps no request separately, never trims the heap, and keeps the heaps of threads.
/// Raising `mmap_threshold` instead does not work everywhere. mallopt(3) limits it to 32 MiB, and provers allocate
/// larger buffers. glibc 2.36 accepts more, but older versions silently reject such a value.
pub(crate) const RETAINS: &str =
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.top_pad=67108864";

/// Describes the installed allocator.
#[inline]
pub fn installed() -> Installed {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    return Installed {
        setting: gnu::setting,
        ..Installed::named("glibc", &gnu::version(), &["GLIBC_TUNABLES", "MALLOC_"])
    };
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    Installed::named("system", env!("PROVE_BENCH_TARGET"), &["MALLOC_"])
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "glibc is queried through its C interface")]
mod gnu {
    use std::ffi::CStr;

    /// Larger than the highest threshold above which glibc maps a request separately.
    const PROBE_BYTES: usize = 256 << 20;

    pub(super) fn version() -> String {
        // SAFETY: the function takes no arguments and returns a pointer to a string that lives as long as the process
        // (gnu_get_libc_version(3)).
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        version.to_string_lossy().into_owned()
    }

    /// glibc does not report its tunables and silently rejects bad values. So this tests its behaviour instead.
    pub(super) fn setting(name: &str) -> Option<String> {
        (name == "retains 256 MiB").then(|| retention().into())
    }

    /// Tests whether glibc retains a large block that is freed. The block is never touched, so it costs no memory.
    fn retention() -> &'static str {
        // SAFETY: the block is freed once; mallinfo2(3) only reads.
        let (before, used, after) = unsafe {
            let before = libc::mallinfo2();
            let at = std::hint::black_box(libc::malloc(PROBE_BYTES));
            let used = libc::mallinfo2();
            libc::free(at);
            (before, used, libc::mallinfo2())
        };
        if used.hblks > before.hblks {
            "no: it is mapped by itself"
        } else if after.keepcost < PROBE_BYTES {
            "no: it is given back"
        } else {
            "yes"
        }
    }
}
