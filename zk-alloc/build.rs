//! Tells the crate whether it is built with a sanitizer. Cargo also asks for a build script beside the key `links`, by which it keeps a
//! second copy of this crate out of a program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(sanitized)");
    // Only compilers that take `-Zsanitizer` say so.
    if std::env::var_os("CARGO_CFG_SANITIZE").is_some() {
        println!("cargo::rustc-cfg=sanitized");
    }
}
