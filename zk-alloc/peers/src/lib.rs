//! The allocators that people would use instead of zk-alloc. The benches and the tests call each of them as a `GlobalAlloc` value. They are a
//! package of their own because jemalloc, mimalloc and snmalloc take minutes to build from C and C++.
