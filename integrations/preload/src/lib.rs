//! `libzk_alloc.so`: the C library's allocation functions on top of zk-alloc's arena, for `LD_PRELOAD`. See the README
//! next to this package's Cargo.toml and docs/preload.md.
//!
//! Programs call the functions in `functions` (for C) and `operators` (for C++). These ask `start` whether the library is in use and which
//! sizes it serves, and pass a request to the arena or to `glibc`, which finds glibc's own functions. `names` calls functions that the
//! program may have replaced. `watched` drops a flag of `dlopen` that would split the process between two allocators, and detects that the
//! program is about to enter a sandbox. `header` has the functions of zk_alloc.h. `report` prints the line at exit, and `profile` samples
//! call sites.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod functions;
mod glibc;
mod header;
mod names;
mod operators;
mod profile;
mod report;
mod start;
mod watched;

/// Serves the allocations of this library's own Rust code from glibc, because an allocator must not serve itself.
#[global_allocator]
static ALLOCATOR: glibc::Glibc = glibc::Glibc;
