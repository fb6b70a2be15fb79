//! Calls by a name that the process may have bound to another function. The loader looks in the program first, then in
//! libraries preloaded before this one, then here. A call in Rust would always reach our function.
#![allow(unsafe_code, reason = "reads the library's table of addresses")]

/// The address that the process has for a name: the program's function, if it has one, or ours.
macro_rules! named {
    ($name:literal) => {{
        let address: *mut c_void;
        // SAFETY: reads an entry of the library's table of addresses.
        unsafe {
            asm!(
                #[cfg(target_arch = "x86_64")]
                concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                #[cfg(target_arch = "aarch64")]
                concat!("adrp {0}, :got:", $name, "\nldr {0}, [{0}, :got_lo12:", $name, "]"),
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
        // SAFETY: computes the address of a label.
        unsafe {
            asm!(
                #[cfg(target_arch = "x86_64")]
                concat!("lea {0}, [rip + zk_alloc", $name, "]"),
                #[cfg(target_arch = "aarch64")]
                concat!("adrp {0}, zk_alloc", $name, "\nadd {0}, {0}, :lo12:zk_alloc", $name),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        named!($name) == address
    }};
}

/// The label that [`is_ours`] compares with, at the start of a function.
macro_rules! label {
    ($name:literal) => {
        concat!(".globl zk_alloc", $name, "\n.hidden zk_alloc", $name, "\nzk_alloc", $name, ":")
    };
}

/// Defines functions that jump to the process's function of another name, or to one of ours. They leave registers and stack as they are.
macro_rules! jumps {
    (@to $name:literal $target:literal) => {
        naked_asm!(
            label!($name),
            #[cfg(target_arch = "x86_64")]
            concat!("endbr64\njmp qword ptr [rip + ", $target, "@GOTPCREL]"),
            #[cfg(target_arch = "aarch64")]
            concat!("hint #34 // bti c\nadrp x16, :got:", $target, "\nldr x16, [x16, :got_lo12:", $target, "]\nbr x16"),
        );
    };
    (@to $name:literal $target:ident) => {
        naked_asm!(
            label!($name),
            #[cfg(target_arch = "x86_64")]
            "endbr64\njmp {target}",
            #[cfg(target_arch = "aarch64")]
            "hint #34 // bti c\nb {target}",
            target = sym $target,
        );
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
