//! Two facts of a build that several modules ask for, each under a name of its own. Cargo also asks for a build script beside the
//! key `links`, by which it keeps a second copy of this crate out of a program.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(sanitized, thread_blocks)");
    // Built with a sanitizer; only compilers that take `-Zsanitizer` say so.
    if env::var_os("CARGO_CFG_SANITIZE").is_some() {
        println!("cargo::rustc-cfg=sanitized");
    }
    // What belongs to a thread lies in a block of our own instead of a thread local of the compiler's.
    let is = |variable, values: &[&str]| env::var(variable).is_ok_and(|value| values.contains(&value.as_str()));
    if env::var_os("CARGO_FEATURE_C_API").is_some()
        && is("CARGO_CFG_TARGET_OS", &["linux"])
        && is("CARGO_CFG_TARGET_ARCH", &["x86_64", "aarch64"])
        && env::var_os("CARGO_CFG_LOOM").is_none()
    {
        println!("cargo::rustc-cfg=thread_blocks");
    }
}
