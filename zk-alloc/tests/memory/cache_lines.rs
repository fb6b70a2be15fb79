//! Two threads that write to their own small blocks do not write to the same cache line.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use zk_alloc::phase;

const LINE_BYTES: usize = 64;
/// No multiples of a line, and no sizes that the standard library asks for when it starts a thread.
const SIZES: [usize; 3] = [80, 96, 112];

/// The first line and the last.
fn lines(block: &[u8]) -> [usize; 2] {
    let at = block.as_ptr().addr();
    [at, at + block.len() - 1].map(|byte| byte / LINE_BYTES)
}

#[test]
fn the_first_blocks_of_two_threads_share_no_cache_line() {
    phase(|| {
        for bytes in SIZES {
            let both_have = Barrier::new(2);
            let first = || {
                let block = black_box(vec![1u8; bytes]);
                both_have.wait();
                block
            };
            let [a, b] = thread::scope(|scope| {
                [(); 2].map(|()| scope.spawn(first)).map(|thread| thread.join().expect("it allocates"))
            });
            let [a, b] = [lines(&a), lines(&b)];
            assert!(a[1] < b[0] || b[1] < a[0], "blocks of {bytes} bytes on the lines {a:?} and {b:?}");
        }
    });
}
