//! The allocators that people would use instead of zk-alloc. The benches and the tests call each of them as a `GlobalAlloc` value. This
//! package is separate because jemalloc, mimalloc and snmalloc take minutes to build from C and C++.

// The examples in these documents are compiled and run here, because one of them uses jemalloc as the backing allocator.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migrating.md")]
struct Migrating;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/operating.md")]
struct Operating;
