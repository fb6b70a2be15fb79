//! Two threads that write to their own small blocks do not write to the same cache line.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use zk_alloc::phase;

const LINE_BYTES: usize = 64;
/// No multiples of a line, and no sizes that the standard library asks for when it starts a thread.
const SIZES: [usize; 3] = [80, 96, 112];

fn block(bytes: usize) -> Vec<u8> {
    black_box(vec![1; bytes])
}

#[track_caller]
fn assert_share_no_line(a: &[u8], b: &[u8]) {
    let lines = |block: &[u8]| {
        let bytes = block.as_ptr_range();
        bytes.start.addr() / LINE_BYTES..bytes.end.addr().div_ceil(LINE_BYTES)
    };
    let [one, other] = [a, b].map(lines);
    assert!(
        one.end <= other.start || other.end <= one.start,
        "bytes {:?} and {:?}",
        a.as_ptr_range(),
        b.as_ptr_range()
    );
}

#[test]
fn the_first_blocks_of_two_threads_share_no_cache_line() {
    phase(|| {
        for bytes in SIZES {
            let both_have = Barrier::new(2);
            let first = || {
                let block = block(bytes);
                both_have.wait();
                block
            };
            let [a, b] = thread::scope(|scope| {
                [(); 2].map(|()| scope.spawn(first)).map(|thread| thread.join().expect("it allocates"))
            });
            assert_share_no_line(&a, &b);
        }
    });
}
