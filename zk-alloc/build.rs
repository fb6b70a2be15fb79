//! Builds nothing. Cargo asks for a build script beside the key `links`, by which it keeps a second copy of this crate out of a
//! program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
