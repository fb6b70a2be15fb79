//! `libzk_alloc.so`: the C library's allocation functions over zk-alloc's arena, for `LD_PRELOAD`. See the README beside this
//! package's Cargo.toml and docs/preload.md.
//!
//! Programs call the names in `exports` (C's) and `operators` (C++'s). `functions` stands behind them: it asks `start` whether the
//! library is in use and from which size on, and passes a request to the arena or to `glibc`. `glibc` finds glibc's functions with
//! `symbols`; `names` calls functions that the program may have replaced. `dlopen` keeps one way of loading from dividing the
//! process between two allocators; `sandbox` notices that the program is about to give up system calls; `header` has the functions of zk_alloc.h; `report` prints the line at exit, and `procfs` reads
//! what that needs.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod dlopen;
mod exports;
mod functions;
mod glibc;
mod header;
mod names;
mod operators;
mod procfs;
mod report;
mod sandbox;
mod start;
mod symbols;

/// What the standard library allocates in here comes from glibc: an allocator must not serve itself.
#[global_allocator]
static ALLOCATOR: glibc::Glibc = glibc::Glibc;
