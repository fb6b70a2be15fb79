//! `ZK_ALLOC_MAX_BYTES`: beyond the cap requests go to the backing allocator; free memory elsewhere makes room first.

mod support;

use support::{alone, is_alone};
use zk_alloc::{ZkAllocator, overflow_stats, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

const CAP_BYTES: usize = 64 << 20;

#[test]
fn resident_memory_stays_below_the_cap() {
    let name = "resident_memory_stays_below_the_cap";
    if !is_alone() {
        return alone(name, &[("ZK_ALLOC_MAX_BYTES", "64M".as_ref())]).assert_passed(name);
    }
    phase(|| {
        let first = vec![1u8; 40 << 20];
        let second = vec![2u8; 40 << 20];
        assert_eq!(overflow_stats(), (1, 40 << 20), "the second buffer would exceed the cap");
        assert!(first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2));
        drop((first, second));

        let small: Vec<_> = (0..20u8).map(|i| vec![i; 1 << 20]).collect();
        assert_eq!(overflow_stats().0, 1, "the first buffer's memory made room");
        assert!(small.iter().zip(0u8..).all(|(buffer, i)| buffer.iter().all(|&byte| byte == i)));
        assert!(stats().resident_bytes <= CAP_BYTES, "{}", stats());
    });
}
