//! Calls by a name that the process may have bound to another function. The loader looks in the program first, then in
//! libraries preloaded before this one, then here. A call in Rust would always reach our function.
#![allow(unsafe_code, reason = "reads the library's table of addresses")]

/// The address that the process has for a name: the program's function, if it has one, or ours.
macro_rules! named {
    ($name:literal) => {{
        let address: *mut c_void;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reads an entry of the library's table of addresses.
        unsafe {
            asm!(
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!(
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        address
    }};
}

/// Whether the process's function of a name is ours, and not replaced by the program or by a library before this one.
macro_rules! is_ours {
    ($name:literal) => {{
        let address: *mut c_void;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: computes the address of a label.
        unsafe {
            asm!(
                concat!("lea {}, [rip + zk_alloc", $name, "]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            asm!(
                concat!("adrp {0}, zk_alloc", $name),
                concat!("add {0}, {0}, :lo12:zk_alloc", $name),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        named!($name) == address
    }};
}

/// The label that [`is_ours`] compares with, at the start of a function.
#[cfg(target_arch = "x86_64")]
macro_rules! label {
    ($name:literal) => {
        concat!(".globl zk_alloc", $name, "\n.hidden zk_alloc", $name, "\nzk_alloc", $name, ":\nendbr64")
    };
}

/// As above; `hint #34` is `bti c`.
#[cfg(target_arch = "aarch64")]
macro_rules! label {
    ($name:literal) => {
        concat!(".globl zk_alloc", $name, "\n.hidden zk_alloc", $name, "\nzk_alloc", $name, ":\nhint #34")
    };
}

/// Defines functions that jump to the process's function of another name, or to one of ours. They leave registers and stack as they are.
macro_rules! jumps {
    (@to $name:literal $target:literal) => {
        #[cfg(target_arch = "x86_64")]
        naked_asm!(label!($name), concat!("jmp qword ptr [rip + ", $target, "@GOTPCREL]"));
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            label!($name),
            concat!("adrp x16, :got:", $target),
            concat!("ldr x16, [x16, :got_lo12:", $target, "]"),
            "br x16",
        );
    };
    (@to $name:literal $target:ident) => {
        #[cfg(target_arch = "x86_64")]
        naked_asm!(label!($name), "jmp {target}", target = sym $target);
        #[cfg(target_arch = "aarch64")]
        naked_asm!(label!($name), "b {target}", target = sym $target);
    };
    ($($(#[$doc:meta])* $own:ident = $name:literal -> $target:tt;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in the standard that defines it.
        #[unsafe(naked)]
        #[unsafe(export_name = $name)]
        pub(crate) unsafe extern "C-unwind" fn $own() {
            jumps!(@to $name $target);
        }
    )*};
}

pub(crate) use {is_ours, jumps, label, named};
