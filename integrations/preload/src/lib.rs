//! `libzk_alloc.so`: the C library's allocation functions over zk-alloc's arena, for `LD_PRELOAD`. See the README beside this
//! package's Cargo.toml and docs/preload.md.
//!
//! `functions` is what programs call; it asks `start` whether the library is in use and from which size on, hands what is large
//! to the arena, and everything else to `glibc`. `dlopen` keeps one way of loading from dividing the process between two
//! allocators, and `sandbox` notices that the program is about to give up system calls; `header` is what zk_alloc.h declares; `report` is the line at exit.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod dlopen;
mod functions;
mod glibc;
mod header;
mod report;
mod sandbox;
mod start;

/// What the standard library allocates in here comes from glibc: an allocator must not serve itself.
#[global_allocator]
static ALLOCATOR: glibc::Glibc = glibc::Glibc;
