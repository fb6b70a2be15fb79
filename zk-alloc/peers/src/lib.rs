//! zk-alloc beside the allocators that people would use instead. The benches and the tests call each of them as a `GlobalAlloc` value. This is a
//! package of its own because jemalloc, mimalloc and snmalloc take minutes to build from C and C++.
