//! The allocator of the C library: glibc's malloc on most of Linux.

use super::arm::{Arm, Colour};
use super::installed::Installed;

/// Its type.
pub type Allocator = std::alloc::System;

/// What to install.
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

/// glibc gives nothing back: no request is mapped by itself, the heap is never trimmed, and the heaps of threads stay.
/// Raising `mmap_threshold` would not do everywhere: mallopt(3) ends it at 32 MiB, and glibc 2.36 takes more, but buffers
/// are larger than the one, and older versions refuse the other without a word.
pub(crate) const RETAINS: &str =
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.top_pad=67108864";

/// What the arm says of it.
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
#[expect(unsafe_code, reason = "glibc is asked through its C interface")]
mod gnu {
    use std::ffi::CStr;

    /// More than the largest threshold above which glibc maps a request by itself.
    const PROBE_BYTES: usize = 256 << 20;

    pub(super) fn version() -> String {
        // SAFETY: the function takes no arguments and returns a pointer to a string that lives as long as the process
        // (gnu_get_libc_version(3)).
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        version.to_string_lossy().into_owned()
    }

    /// glibc does not tell its tunables, and refuses values without a word: it is watched instead.
    pub(super) fn setting(name: &str) -> Option<String> {
        (name == "retains 256 MiB").then(|| retention().into())
    }

    /// What becomes of a large request, which is never touched and so costs no memory.
    fn retention() -> &'static str {
        // SAFETY: what was allocated is freed once; mallinfo2(3) only reads.
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
