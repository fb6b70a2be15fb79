//! Sets the `cfg`s `sanitized` and `thread_blocks`, which several modules check. Cargo also requires a build script because the manifest
//! has the key `links`, which prevents a second copy of this crate in a program.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(sanitized, thread_blocks)");
    // Only compilers that accept `-Zsanitizer` set this variable, and only in sanitizer builds.
    if env::var_os("CARGO_CFG_SANITIZE").is_some() {
        println!("cargo::rustc-cfg=sanitized");
    }
    // With `thread_blocks`, a thread's state is stored in a block that this crate allocates, and not in the compiler's thread locals.
    let is = |variable, values: &[&str]| env::var(variable).is_ok_and(|value| values.contains(&value.as_str()));
    if env::var_os("CARGO_FEATURE_C_API").is_some()
        && is("CARGO_CFG_TARGET_OS", &["linux"])
        && is("CARGO_CFG_TARGET_ARCH", &["x86_64", "aarch64"])
        && env::var_os("CARGO_CFG_LOOM").is_none()
    {
        println!("cargo::rustc-cfg=thread_blocks");
    }
}
