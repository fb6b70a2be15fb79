//! Settings of the installed allocator are in force before the first phase in `main`, no matter which code made its
//! first request.

use std::hint::black_box;
use zk_alloc::{Mode, Origin, Participants, Settings, ZkAllocator, min_arena_bytes, phase, stats};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator
    .settings(Settings::new().min_bytes(100).max_bytes(1 << 30))
    .mode(Mode::Scoped)
    .participants(Participants::All);

/// Methods that build the allocator further keep its settings.
#[test]
fn settings_of_the_installed_allocator_are_in_force_from_the_first_phase_on() {
    // The test harness has already allocated.
    let expected = std::env::var("ZK_ALLOC_MIN_BYTES").is_err().then_some((100, Origin::Program));
    phase(|| drop(black_box(vec![1u8; 1 << 20])));
    let settings = stats().settings.expect("there is an arena");
    if let Some(expected) = expected {
        assert_eq!((settings.min_bytes.value, settings.min_bytes.origin), expected);
        assert_eq!(min_arena_bytes(), 100);
    }
    assert!(stats().run_allocations > 0, "{}", stats());
}
