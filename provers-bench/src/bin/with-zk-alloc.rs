//! The arm `zk-alloc`: our arena, the system's allocator beneath it.

provers_bench::arm!(zk_alloc, &[]);
