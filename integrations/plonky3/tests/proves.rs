//! Tests the adapter with real Plonky3 proofs, across phases, with zk-alloc installed.

#[allow(dead_code)]
mod common;
#[path = "../../test_support.rs"]
mod support;

use common::{Fibonacci, LOG_BLOWUP, Squares, Val, config};
use p3_batch_stark::{ProverData, StarkInstance, verify_batch};
use p3_uni_stark::{setup_preprocessed, verify, verify_with_preprocessed};
use serde::Serialize;
use support::{alone, arena_bytes_of};

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

fn bytes<T: Serialize>(proof: &T) -> Vec<u8> {
    postcard::to_allocvec(proof).expect("a proof serialises")
}

/// The config caches the DFT's twiddle factors by height, inside the phase of the first proof that needs them. A proof owns buffers that
/// its phase allocated: with 256 queries, some are large enough for the arena. The cache and the buffers must survive later phases. Those
/// phases request the same sizes in the same order, so an arena that resets would overwrite them.
///
/// The trace is the largest buffer of a Plonky3 proof. If the closure builds it, it must come from the arena, with its capacity for the
/// extension. If it is built before `prove`, it does not come from the arena, but all other buffers do.
///
/// The adapter adds only a phase, and changes nothing in the transcript, so each proof equals the framework's byte for byte.
#[test]
fn five_proofs_of_changing_size_equal_the_framework_s_and_verify_at_the_end() {
    let _turn = alone();
    let config = config();
    let sizes = [12, 15, 12, 10, 15];
    let proofs = sizes.map(|log_rows| {
        let public_values = Fibonacci::public_values(log_rows);
        let mut inside = 0;
        let trace = || {
            let (bytes, trace) = arena_bytes_of(|| Fibonacci::trace(log_rows));
            inside = bytes;
            trace
        };
        let proof = zk_alloc_plonky3::prove_with_trace(&config, &Fibonacci, trace, &public_values).unwrap();
        let trace_bytes = ((2 << log_rows) << LOG_BLOWUP) * size_of::<Val>();
        // The system allocator serves requests of fewer than `min_arena_bytes`.
        if trace_bytes >= zk_alloc::min_arena_bytes() {
            assert!(inside >= trace_bytes as u64, "the arena served {inside} bytes of a trace of {trace_bytes}");
        }

        let (outside, trace) = arena_bytes_of(|| Fibonacci::trace(log_rows));
        assert_eq!(outside, 0, "no phase is open here");
        let theirs = bytes(&p3_uni_stark::prove(&config, &Fibonacci, trace.clone(), &public_values).unwrap());
        assert_eq!(bytes(&proof), theirs, "`prove_with_trace` of 2^{log_rows} rows");
        let (rest, ours) = arena_bytes_of(|| zk_alloc_plonky3::prove(&config, &Fibonacci, trace, &public_values));
        assert!(rest > 0, "`prove` itself allocates in the arena");
        assert_eq!(bytes(&ours.unwrap()), theirs, "`prove` of 2^{log_rows} rows");
        proof
    });
    for (proof, log_rows) in proofs.iter().zip(sizes) {
        verify(&config, &Fibonacci, proof, &Fibonacci::public_values(log_rows)).expect("it verifies");
    }
}

/// Every proof reads the committed preprocessed columns and their Merkle tree. Here they are created inside a phase, as a program may do,
/// and they must outlive it.
#[test]
fn preprocessed_data_made_in_one_phase_serves_the_next_three() {
    let _turn = alone();
    let (config, air) = (config(), Squares { log_rows: 12 });
    let (prover_data, key) = zk_alloc::phase(|| setup_preprocessed(&config, &air, air.log_rows))
        .expect("the commitment scheme takes it")
        .expect("the AIR has preprocessed columns");
    let preprocessed = Some(&prover_data);
    let framework = p3_uni_stark::prove_with_preprocessed;
    let theirs = bytes(&framework(&config, &air, air.trace(), &[], preprocessed).unwrap());

    for _ in 0..3 {
        let adapter = zk_alloc_plonky3::prove_with_preprocessed;
        let proof = adapter(&config, &air, air.trace(), &[], preprocessed).unwrap();
        verify_with_preprocessed(&config, &air, &proof, &[], Some(&key)).expect("it verifies");
        assert_eq!(bytes(&proof), theirs);
    }
}

/// A batch commits to traces of different heights at once, and later batches use the same heights. The config's caches
/// must serve every batch, and each proof must equal the framework's.
#[test]
fn batches_of_changing_shape_prove_and_equal_the_framework_s() {
    let _turn = alone();
    let config = config();
    for log_rows in [[6, 13], [13, 4], [11, 13]] {
        let airs = [Fibonacci; 2];
        let traces = log_rows.map(Fibonacci::trace);
        let public_values = log_rows.map(Fibonacci::public_values);
        let trace_refs = [&traces[0], &traces[1]];
        let instances = StarkInstance::new_multiple(&airs, &trace_refs, &public_values);
        let prover_data = ProverData::from_instances(&config, &instances).unwrap();

        let proof = zk_alloc_plonky3::prove_batch(&config, &instances, &prover_data).unwrap();
        verify_batch(&config, &airs, &proof, &public_values, &prover_data.common).expect("it verifies");
        let theirs = p3_batch_stark::prove_batch(&config, &instances, &prover_data).unwrap();
        assert_eq!(bytes(&proof), bytes(&theirs));
    }
}
