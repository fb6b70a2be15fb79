//! Calls functions by names that the process may have bound to other functions. The loader looks in the program first, then in libraries
//! preloaded before this one, then in this one. An ordinary call in Rust would always reach our function.
#![allow(unsafe_code, reason = "reads the library's global offset table")]

/// Returns the address that the inline assembly for the target architecture loads.
macro_rules! address {
    ($x86_64:expr, $aarch64:expr) => {{
        let address: *mut c_void;
        // SAFETY: the assembly only computes the address of a symbol, or loads it from the library's global offset table (GOT).
        unsafe {
            asm!(
                #[cfg(target_arch = "x86_64")]
                $x86_64,
                #[cfg(target_arch = "aarch64")]
                $aarch64,
                out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        address
    }};
}

/// The address to which the process resolves a name: the program's function if the program defines one, otherwise ours.
macro_rules! named {
    ($name:literal) => {
        $crate::names::address!(
            concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"),
            concat!("adrp {0}, :got:", $name, "\nldr {0}, [{0}, :got_lo12:", $name, "]")
        )
    };
}

/// Whether a name resolves to our function. The program, or a library before this one, may replace that function.
macro_rules! is_ours {
    ($name:literal) => {
        named!($name)
            == $crate::names::address!(
                concat!("lea {0}, [rip + zk_alloc", $name, "]"),
                concat!("adrp {0}, zk_alloc", $name, "\nadd {0}, {0}, :lo12:zk_alloc", $name)
            )
    };
}

/// Defines functions that jump to the process's function of another name, or to a function of this library. They leave the registers and
/// the stack unchanged, except that for a target in brackets, the third argument replaces the second. Each function starts with the label
/// against which [`is_ours`] compares.
macro_rules! jumps {
    (@to $name:literal $target:ident) => {
        jumps!(@asm $name, "jmp {target}", "b {target}", target = sym $target);
    };
    (@to $name:literal $target:literal) => {
        jumps!(@to $name ("", "") $target);
    };
    (@to $name:literal [$target:literal]) => {
        jumps!(@to $name ("mov rsi, rdx\n", "mov x1, x2\n") $target);
    };
    (@to $name:literal ($x86_64:literal, $aarch64:literal) $target:literal) => {
        jumps!(
            @asm $name,
            concat!($x86_64, "jmp qword ptr [rip + ", $target, "@GOTPCREL]"),
            concat!($aarch64, "adrp x16, :got:", $target, "\nldr x16, [x16, :got_lo12:", $target, "]\nbr x16"),
        );
    };
    (@asm $name:literal, $x86_64:expr, $aarch64:expr, $($operand:tt)*) => {
        naked_asm!(
            concat!(".globl zk_alloc", $name, "\n.hidden zk_alloc", $name, "\nzk_alloc", $name, ":"),
            #[cfg(target_arch = "x86_64")]
            concat!("endbr64\n", $x86_64),
            #[cfg(target_arch = "aarch64")]
            concat!("hint #34 // bti c\n", $aarch64),
            $($operand)*
        );
    };
    ($($(#[$doc:meta])* $own:ident = $name:literal -> $target:tt;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The caller must meet the requirements of the standard that defines the function.
        #[unsafe(naked)]
        #[unsafe(export_name = $name)]
        pub(crate) unsafe extern "C-unwind" fn $own() {
            jumps!(@to $name $target);
        }
    )*};
}

pub(crate) use {address, is_ours, jumps, named};
