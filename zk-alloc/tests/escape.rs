//! What outlives its phase is named, with the place where it was made; what does not, is not.

use std::hint::black_box;

use zk_alloc::{Escaped, ZkAllocator, escaped, phase, trace_escaped};

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

#[inline(never)]
fn make_what_stays() -> Vec<u8> {
    black_box(vec![1u8; 3 << 20])
}

#[inline(never)]
fn make_what_goes() {
    drop(black_box(vec![2u8; 5 << 20]));
}

fn bytes(places: &[Escaped]) -> usize {
    places.iter().map(|place| place.bytes).sum()
}

#[test]
fn what_escapes_is_reported_with_its_place() {
    trace_escaped(true);
    let mut kept = phase(|| {
        make_what_goes();
        (make_what_stays(), make_what_stays())
    });
    let places = escaped();
    let own: Vec<_> = places.iter().filter(|place| place.backtrace.contains("make_what_stays")).cloned().collect();
    assert_eq!(own.iter().map(|place| place.allocations).sum::<usize>(), 2, "{places:?}");
    assert_eq!(bytes(&own), 6 << 20);
    assert!(!places.iter().any(|place| place.backtrace.contains("make_what_goes")), "{places:?}");

    kept.0.truncate(1 << 20);
    kept.0.shrink_to_fit();
    assert_eq!(bytes(&escaped()), bytes(&places) - (2 << 20), "shrunk in place, it counts what is left");

    drop(kept);
    assert_eq!(bytes(&escaped()), bytes(&places) - (6 << 20), "freed after its phase, it is gone from the list");
    trace_escaped(false);
}
