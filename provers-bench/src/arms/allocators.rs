//! The allocators that an arm's binary may link, by the name that [`arm!`](crate::arm) takes: what to install, and what
//! the arm says of it. A crate with a prover of its own has them from here, and depends on this one alone.
//!
//! `installed` is `#[inline]`: it is compiled in the binary that calls it and never in this library. An allocator that the
//! library itself called would be linked into every arm, with whatever it does before `main`.

macro_rules! allocators {
    ($($(#[$about:meta])* $name:ident: $type:ty = $value:expr, $installed:expr;)*) => {
        $($(#[$about])*
        pub mod $name {
            /// Its type.
            pub type Allocator = $type;

            /// What to install.
            pub const ALLOCATOR: Allocator = $value;

            /// What the arm says of it.
            #[inline]
            pub fn installed() -> crate::arms::Installed {
                $installed
            }
        })*
    };
}

allocators! {
    /// Bump and reset: the crate zk-alloc 0.0.9.
    bump_reset: zk_alloc_0_0_9::ZkAllocator = zk_alloc_0_0_9::ZkAllocator, crate::arms::Installed::bump_reset();
    /// The allocator of the C library.
    glibc: std::alloc::System = std::alloc::System, crate::arms::Installed::system();
    /// jemalloc, through `tikv-jemallocator`.
    jemalloc: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc, crate::arms::Installed::jemalloc();
    /// mimalloc.
    mimalloc: ::mimalloc::MiMalloc = ::mimalloc::MiMalloc, crate::arms::Installed::mimalloc();
    /// snmalloc, through `snmalloc-rs`, whose version is pinned in the manifest.
    snmalloc: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc, crate::arms::Installed::named("snmalloc", "0.7.6", &[]);
    /// Our arena, over the allocator of the C library.
    zk_alloc: ::zk_alloc::ZkAllocator = ::zk_alloc::ZkAllocator, crate::arms::Installed::zk_alloc();
    /// Our arena, which takes part always, without phases.
    zk_alloc_resident: ::zk_alloc::ZkAllocator = ::zk_alloc::ZkAllocator::resident(), crate::arms::Installed::zk_alloc();
}
