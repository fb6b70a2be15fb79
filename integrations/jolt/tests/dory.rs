//! The functions of `dory-pcs` through the adapter, and its process-wide cache, with zk-alloc installed.
//!
//! Only one test at a time may use that cache, and it must begin empty. So these tests have a process to themselves,
//! and take turns.

#![cfg(feature = "dory")]

#[path = "../../test_support.rs"]
mod support;

use std::hint::black_box;
use std::sync::MutexGuard;

use dory_pcs::backends::arkworks::{
    ArkDoryProof, ArkFr, ArkGT, ArkworksPolynomial, BN254, Blake2bTranscript, G1Routines, G2Routines,
    get_prepared_cache, init_cache, invalidate_cache,
};
use dory_pcs::primitives::arithmetic::Field;
use dory_pcs::{DoryError, Polynomial, ProverSetup, Transparent, VerifierSetup};
use zk_alloc_jolt::dory;

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

/// The phase, the statistics and the cache belong to the process, so tests that use any of them take turns.
fn alone() -> MutexGuard<'static, ()> {
    let turn = support::alone();
    invalidate_cache();
    turn
}

/// A polynomial of 2^(nu + sigma) coefficients that differ from proof to proof, and the point of its opening.
fn statement(seed: u64, nu: usize, sigma: usize) -> (ArkworksPolynomial, Vec<ArkFr>) {
    let coefficients = (0..1u64 << (nu + sigma)).map(|i| ArkFr::from_u64(seed.wrapping_mul(i * i + 3)));
    let point = (0..(nu + sigma) as u64).map(|i| ArkFr::from_u64(seed + 7 * i + 2));
    (ArkworksPolynomial::new(coefficients.collect()), point.collect())
}

fn transcript() -> Blake2bTranscript<BN254> {
    Blake2bTranscript::new(b"adapter")
}

type Opened = (ArkGT, ArkDoryProof);
type Setup = ProverSetup<BN254>;

/// Commits and opens, through the adapter or without it.
fn open(is_adapter: bool, seed: u64, nu: usize, sigma: usize, setup: &Setup) -> Result<Opened, DoryError> {
    let (polynomial, point) = statement(seed, nu, sigma);
    let (commitment, rows, blind) = if is_adapter {
        dory::commit::<BN254, Transparent, G1Routines>(&polynomial, nu, sigma, setup)?
    } else {
        polynomial.commit::<BN254, Transparent, G1Routines>(nu, sigma, setup)?
    };
    let prove = if is_adapter {
        dory::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>
    } else {
        dory_pcs::prove::<_, BN254, G1Routines, G2Routines, _, _, Transparent>
    };
    let (proof, _) = prove(&polynomial, &point, rows, blind, nu, sigma, setup, &mut transcript())?;
    Ok((commitment, proof))
}

/// Verifies, through the adapter, a claim that is `offset` too large.
fn verify(seed: u64, offset: u64, (commitment, proof): &Opened, setup: &VerifierSetup<BN254>) -> Result<(), DoryError> {
    let (polynomial, point) = statement(seed, proof.nu, proof.sigma);
    let evaluation = polynomial.evaluate(&point) + ArkFr::from_u64(offset);
    let (setup, mut transcript) = (setup.clone(), transcript());
    dory::verify::<_, BN254, G1Routines, G2Routines, _>(*commitment, evaluation, &point, proof, setup, &mut transcript)
}

/// Every proof reads the setup. Matrices of other shapes come and go between proofs of the same shape.
#[test]
fn five_openings_verify_equal_the_framework_s_and_reject_another_claim() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = dory_pcs::setup(12);
    for (seed, nu, sigma) in [(1, 6, 6), (2, 5, 6), (3, 6, 6), (4, 3, 5), (5, 6, 6)] {
        let before = zk_alloc::stats();
        let ours = open(true, seed, nu, sigma, &prover_setup).expect("the dimensions fit");
        let after = zk_alloc::stats();
        assert_eq!(after.phases, before.phases + 2, "one to commit, one to prove");
        if (nu, sigma) == (6, 6) {
            assert!(after.arena_bytes > before.arena_bytes, "the arena serves the larger ones");
        }

        assert_eq!(ours, open(false, seed, nu, sigma, &prover_setup).expect("the dimensions fit"));
        assert_eq!(verify(seed, 0, &ours, &verifier_setup), Ok(()));
        assert_eq!(zk_alloc::stats().phases, after.phases + 1, "one to verify");
        assert_eq!(verify(seed, 1, &ours, &verifier_setup), Err(DoryError::InvalidProof));
    }
}

/// The prepared points live in a static. If a program fills the cache inside a phase by mistake, it lies in the arena
/// for the rest of the process. It must be intact after the proofs of later phases, which request the same sizes, and
/// must serve those proofs.
#[test]
fn the_prepared_cache_survives_when_it_is_filled_inside_a_phase() {
    fn all_prepared<P: PartialEq + From<G>, G>(prepared: &[P], points: impl ExactSizeIterator<Item = G>) -> bool {
        prepared.len() == points.len() && prepared.iter().zip(points).all(|(p, g)| *p == P::from(g))
    }
    let _turn = alone();
    let (prover_setup, verifier_setup) = dory_pcs::setup(14);
    let theirs = open(false, 1, 7, 7, &prover_setup).expect("the dimensions fit");

    let before = zk_alloc::stats().arena_bytes;
    zk_alloc::phase(|| init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec));
    assert!(zk_alloc::stats().arena_bytes > before, "nothing of the cache lies in the arena: this shows nothing");

    for seed in [2, 3, 1] {
        // Requests of the cache's sizes, written to: memory that is handed out twice is overwritten.
        zk_alloc::phase(|| {
            init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec);
            let cache = get_prepared_cache().expect("it was filled");
            drop((0..8).map(|_| (*cache).clone()).collect::<Vec<_>>());
            drop(black_box((10..22).map(|log| vec![0xa5u8; 1 << log]).collect::<Vec<_>>()));
        });
        let ours = open(true, seed, 7, 7, &prover_setup).expect("the dimensions fit");
        assert_eq!(verify(seed, 0, &ours, &verifier_setup), Ok(()));
        if seed == 1 {
            assert_eq!(ours, theirs, "with the cache and without");
        }
    }

    let cache = get_prepared_cache().expect("it was filled");
    let g1 = cache.g1_prepared_for(&prover_setup.g1_vec).expect("its points are the setup's");
    let g2 = cache.g2_prepared_for(&prover_setup.g2_vec).expect("its points are the setup's");
    assert!(all_prepared(g1, prover_setup.g1_vec.iter().map(|g| g.0)), "the points of G1");
    assert!(all_prepared(g2, prover_setup.g2_vec.iter().map(|g| g.0)), "the points of G2");
}

/// If the cache is filled before the first phase, as documented, it takes nothing from the arena.
#[test]
fn the_prepared_cache_filled_outside_phases_is_not_in_the_arena() {
    let _turn = alone();
    let (prover_setup, verifier_setup) = dory_pcs::setup(12);
    let before = zk_alloc::stats().arena_bytes;
    init_cache(&prover_setup.g1_vec, &prover_setup.g2_vec);
    assert_eq!(zk_alloc::stats().arena_bytes, before);

    let ours = open(true, 1, 6, 6, &prover_setup).expect("the dimensions fit");
    assert_eq!(verify(1, 0, &ours, &verifier_setup), Ok(()));
}
