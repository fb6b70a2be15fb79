//! Makes the library depend only on `libc.so.6`, a name that every loader knows. A program must start with the library even if it uses
//! another C library, or if its container image lacks `libgcc_s.so.1`.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let is_gnu = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
        && std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    if !is_gnu {
        return;
    }
    // Marks the library as never unloaded. Otherwise, after `dlopen` and `dlclose`, the program would still have a pthread key whose
    // destructor is unmapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // valgrind replaces the functions of a library only if the library has a soname. With this soname, valgrind replaces this library's
    // `malloc`, so it sees the program's requests, and the library is not in use.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libzk_alloc.so");
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".into());
    let file = |name: &str| -> Option<PathBuf> {
        let output = Command::new(&linker).arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        // A compiler without this file prints the bare name.
        path.is_absolute().then_some(path)
    };
    // The unwinder is linked into the library.
    if let Some(folder) = file("libgcc_eh.a").as_deref().and_then(Path::parent) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-lib=static:+whole-archive=gcc_eh");
    }
    // With the usual `-lc`, the library would also depend on the loader's own file, which defines `__tls_get_addr`. The loader finds that
    // symbol without such a dependency.
    if let (Some(shared), Some(rest)) = (file("libc.so.6"), file("libc_nonshared.a")) {
        let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names a folder"));
        let script = format!("GROUP ( {} {} )\n", shared.display(), rest.display());
        std::fs::write(folder.join("libc.so"), script).expect("cargo's folder can be written to");
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
}
