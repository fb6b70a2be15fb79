//! The volume of tests/model.rs with the allocator installed: the model, the threads and their locals live in it.

use zk_alloc::ZkAllocator;

#[path = "model/heap.rs"]
mod heap;
#[path = "model/lock.rs"]
mod lock;
#[path = "model/meeting.rs"]
mod meeting;
#[path = "model/volume.rs"]
mod volume;

use heap::Heap;
use volume::Volume;

#[global_allocator]
static ALLOC: ZkAllocator = ZkAllocator;

#[test]
fn volume_beside_everything_else_that_a_process_allocates() {
    let heap = Box::leak(Box::new(Heap::new(ZkAllocator, true)));
    volume::run(
        heap,
        Volume { seed: 7, ops: 500_000, threads: 4, ops_per_life: 5_000, ops_per_settling: 10000, at_rest: None },
    );
}
