//! A complete host program: repeated squaring, then a proof of the proof, with zk-alloc as the allocator.
//!
//! `cargo run --release -p zk-alloc-plonky2 --example recursion`

use std::time::Instant;

use plonky2::field::goldilocks_field::GoldilocksField;
use plonky2::field::types::Field;
use plonky2::iop::witness::{PartialWitness, WitnessWrite};
use plonky2::plonk::circuit_builder::CircuitBuilder;
use plonky2::plonk::circuit_data::{CircuitConfig, CircuitData};
use plonky2::plonk::config::PoseidonGoldilocksConfig;
use plonky2::plonk::proof::ProofWithPublicInputs;

#[global_allocator]
static ALLOCATOR: zk_alloc::ZkAllocator = zk_alloc::ZkAllocator;

const D: usize = 2;
type F = GoldilocksField;
type C = PoseidonGoldilocksConfig;

/// 20 squarings per row: they just fit 2^12 rows.
const SQUARINGS: usize = 20 * 4080;

fn main() -> anyhow::Result<()> {
    zk_alloc_plonky2::init();

    let mut builder = CircuitBuilder::<F, D>::new(CircuitConfig::standard_recursion_config());
    let first = builder.add_virtual_public_input();
    let last = (0..SQUARINGS).fold(first, |x, _| builder.square(x));
    builder.register_public_input(last);
    let squarings = builder.build::<C>();

    let mut builder = CircuitBuilder::<F, D>::new(CircuitConfig::standard_recursion_config());
    let inner = builder.add_virtual_proof_with_pis(&squarings.common);
    let key = builder.constant_verifier_data(&squarings.verifier_only);
    builder.verify_proof::<C>(&inner, &key, &squarings.common);
    builder.register_public_inputs(&inner.public_inputs);
    let recursion = builder.build::<C>();

    for x in 2..5 {
        let mut inputs = PartialWitness::new();
        inputs.set_target(first, F::from_canonical_u64(x))?;
        let proof = prove(&format!("squarings of {x}"), &squarings, inputs)?;

        let mut inputs = PartialWitness::new();
        inputs.set_proof_with_pis_target(&inner, &proof)?;
        prove(&format!("the proof for {x}"), &recursion, inputs)?;
    }
    Ok(())
}

/// Proves and verifies, and prints how long the proof took and how much of its memory the arena served.
fn prove(
    what: &str,
    circuit: &CircuitData<F, C, D>,
    inputs: PartialWitness<F>,
) -> anyhow::Result<ProofWithPublicInputs<F, C, D>> {
    let (before, start) = (zk_alloc::stats(), Instant::now());
    let proof = zk_alloc_plonky2::prove(circuit, inputs)?;
    let (elapsed, after) = (start.elapsed(), zk_alloc::stats());
    circuit.verify(proof.clone())?;
    println!(
        "{what}: verified, {:.0} ms, {:.1} MB in {} allocations from the arena",
        elapsed.as_secs_f64() * 1e3,
        (after.arena_bytes - before.arena_bytes) as f64 / 1e6,
        after.arena_allocations - before.arena_allocations,
    );
    Ok(proof)
}
