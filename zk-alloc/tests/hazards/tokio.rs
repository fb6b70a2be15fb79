//! A server's runtime in the prover's process. It allocates messages in phases that it does not know about.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{THRESHOLDS, alone, assert_patterned, patterned, small_nodes_too};
use tokio::sync::mpsc;
use zk_alloc::{phase, stats};

const MESSAGE_BYTES: usize = 1 << 20;

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

struct Message {
    body: Vec<u8>,
    checksum: u64,
}

/// Threads of the runtime make messages, tasks, wakers and channel blocks, at times unrelated to phases. Each may lie
/// in the arena or not, lives through many phases, and is freed by another thread.
#[test]
fn messages_arrive_intact_while_phases_open_and_close_around_them() {
    alone!(each THRESHOLDS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let before = stats();
    let senders = (0..4u64).map(|route| runtime.spawn(carry(route, stop.clone()))).collect::<Vec<_>>();
    let mut kept = Vec::new();
    for round in 0..1_000u64 {
        phase(|| {
            let buffer = patterned(32 << 10, round);
            // The runtime gets a turn inside the phase as well as between two phases.
            std::thread::sleep(Duration::from_micros(200));
            assert_patterned(&buffer, round);
            if round.is_multiple_of(100) {
                kept.push((round, buffer));
            }
        });
    }
    stop.store(true, Ordering::Relaxed);
    let arrived: u64 = senders.into_iter().map(|route| runtime.block_on(route).unwrap()).sum();
    drop(runtime);
    kept.iter().for_each(|(round, buffer)| assert_patterned(buffer, *round));
    let after = stats();
    // The prover's own buffers, and some of the messages.
    let runs = after.run_allocations - before.run_allocations;
    assert!(arrived >= 20, "{arrived} messages");
    assert!(runs >= 1_000 + 5, "{arrived} messages; {after}");
    if small_nodes_too() {
        assert!(after.slab_allocations > before.slab_allocations, "{after}");
    }
}

/// Sends messages from task to task until `stop` is set. Returns the number that arrived.
async fn carry(route: u64, stop: Arc<AtomicBool>) -> u64 {
    let (send, mut relay) = mpsc::channel::<Message>(2);
    let (forward, mut receive) = mpsc::unbounded_channel::<Message>();
    let source = tokio::spawn(async move {
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let mut body = vec![0u8; MESSAGE_BYTES / 2];
            body.fill((number ^ route) as u8);
            // The message grows to its full length later, maybe in another phase.
            tokio::time::sleep(Duration::from_micros(300)).await;
            body.resize(MESSAGE_BYTES, number as u8);
            body[..8].copy_from_slice(&number.to_le_bytes());
            let checksum = checksum(&body);
            send.send(Message { body, checksum }).await.unwrap();
            number += 1;
        }
    });
    let relayed = tokio::spawn(async move {
        while let Some(message) = relay.recv().await {
            forward.send(Message { body: message.body.clone(), checksum: message.checksum }).unwrap();
            assert_eq!(checksum(&message.body), message.checksum);
        }
    });
    let mut arrived = 0u64;
    while let Some(message) = receive.recv().await {
        assert_eq!(message.body.len(), MESSAGE_BYTES);
        assert_eq!(message.body[..8], arrived.to_le_bytes(), "route {route}");
        assert_eq!(checksum(&message.body), message.checksum, "message {arrived} of route {route}");
        arrived += 1;
    }
    source.await.unwrap();
    relayed.await.unwrap();
    arrived
}
