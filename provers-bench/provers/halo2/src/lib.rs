//! Axiom's Halo2 as a prover for prove-bench, with KZG over BN256 and SHPLONK. The statement: the prover knows two vectors of bytes with a
//! given inner product.

use anyhow::Context;
use halo2_axiom::circuit::{Layouter, SimpleFloorPlanner, Value};
use halo2_axiom::halo2curves::bn256::{Bn256, Fr, G1Affine};
use halo2_axiom::plonk::{
    Advice, Circuit, Column, ConstraintSystem, Error, Fixed, Instance, ProvingKey, TableColumn, create_proof,
    keygen_pk, keygen_vk, verify_proof,
};
use halo2_axiom::poly::Rotation;
use halo2_axiom::poly::commitment::ParamsProver;
use halo2_axiom::poly::kzg::commitment::{KZGCommitmentScheme, ParamsKZG};
use halo2_axiom::poly::kzg::multiopen::{ProverSHPLONK, VerifierSHPLONK};
use halo2_axiom::poly::kzg::strategy::SingleStrategy;
use halo2_axiom::transcript::{Blake2bRead, Blake2bWrite, Challenge255, TranscriptReadBuffer, TranscriptWriterBuffer};
use provers_bench::{Prover, Workload, WorkloadSpec};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// The prover, shared by the driver and every arm.
pub static PROVERS: &[Prover] = &[Prover::new(
    "halo2",
    "Halo2 of Axiom 0.5",
    &[WorkloadSpec::new::<Product>("inner-product", "the inner product of vectors of bytes, by KZG", 17)
        .sizes(10, 20)
        .checked_at(10)
        .processes_at_most(2)],
)];

/// A circuit of `2^log_rows` rows, with its keys.
pub struct Product {
    parameters: ParamsKZG<Bn256>,
    key: ProvingKey<G1Affine>,
    rows: usize,
}

impl Workload for Product {
    /// A proof, and the inner product.
    type Proof = (Vec<u8>, Fr);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let rows = 1 << log_rows;
        // These parameters come from a fixed seed. Real parameters come from a ceremony.
        let parameters = ParamsKZG::setup(log_rows, StdRng::seed_from_u64(0));
        let circuit = InnerProduct { pairs: Value::unknown(), steps: steps(rows) };
        let verifying_key = keygen_vk(&parameters, &circuit).context("making the verifying key")?;
        let key = keygen_pk(&parameters, verifying_key, &circuit).context("making the proving key")?;
        Ok(Self { parameters, key, rows })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        // The phase also covers the vectors and the witness.
        zk_alloc::phase(|| {
            let mut rng = StdRng::seed_from_u64(seed);
            let (circuit, product) = InnerProduct::random(self.rows, &mut rng);
            let mut transcript = Blake2bWrite::<_, _, Challenge255<_>>::init(Vec::new());
            create_proof::<KZGCommitmentScheme<Bn256>, ProverSHPLONK<'_, Bn256>, _, _, _, _>(
                &self.parameters,
                &self.key,
                &[circuit],
                &[&[&instance(product)]],
                rng,
                &mut transcript,
            )?;
            Ok((transcript.finalize(), product))
        })
    }

    fn verify(&self, (proof, product): &Self::Proof) -> anyhow::Result<()> {
        let parameters = self.parameters.verifier_params();
        let mut transcript = Blake2bRead::<_, _, Challenge255<_>>::init(&proof[..]);
        Ok(verify_proof::<KZGCommitmentScheme<Bn256>, VerifierSHPLONK<'_, Bn256>, _, _, _>(
            parameters,
            self.key.get_vk(),
            SingleStrategy::new(parameters),
            &[&[&instance(*product)]],
            &mut transcript,
        )?)
    }
}

/// Number of columns for multiplications.
const LANES: usize = 4;
/// Number of cells that a multiplication takes in its column: a sum and two operands. The result is the first cell of the next
/// multiplication.
const CELLS: usize = 3;
/// Number of rows at the end that Halo2 fills with random values.
const RESERVED: usize = 16;

/// Returns the number of multiplications in a column of `rows` rows.
fn steps(rows: usize) -> usize {
    (rows - RESERVED) / CELLS
}

/// Two vectors, as pairs of elements. Key generation needs only their length.
struct InnerProduct {
    pairs: Value<Vec<(u8, u8)>>,
    steps: usize,
}

impl InnerProduct {
    /// Returns vectors that fill `rows` rows, and their inner product.
    fn random(rows: usize, rng: &mut impl Rng) -> (Self, Fr) {
        let steps = steps(rows);
        let pairs: Vec<(u8, u8)> = (0..LANES * steps).map(|_| rng.r#gen()).collect();
        let product: u64 = pairs.iter().map(|&(left, right)| u64::from(left) * u64::from(right)).sum();
        (Self { pairs: Value::known(pairs), steps }, Fr::from(product))
    }
}

/// Returns the public values: the sum before the first product, and the sum of all products.
fn instance(product: Fr) -> [Fr; 2] {
    [Fr::zero(), product]
}

#[derive(Clone)]
struct Columns {
    lanes: [Column<Advice>; LANES],
    enabled: Column<Fixed>,
    bytes: TableColumn,
    public: Column<Instance>,
}

impl Circuit<Fr> for InnerProduct {
    type Config = Columns;
    type FloorPlanner = SimpleFloorPlanner;
    type Params = ();

    fn without_witnesses(&self) -> Self {
        Self { pairs: Value::unknown(), steps: self.steps }
    }

    fn configure(meta: &mut ConstraintSystem<Fr>) -> Columns {
        let lanes = [(); LANES].map(|()| meta.advice_column());
        let (enabled, bytes, public) = (meta.fixed_column(), meta.lookup_table_column(), meta.instance_column());
        meta.enable_equality(public);
        for lane in lanes {
            meta.enable_equality(lane);
            meta.create_gate("sum + left * right = next sum", |meta| {
                let [sum, left, right, next] = [0, 1, 2, 3].map(|row| meta.query_advice(lane, Rotation(row)));
                [meta.query_fixed(enabled, Rotation::cur()) * (sum + left * right - next)]
            });
            for operand in [1, 2] {
                meta.lookup("an operand is a byte", |meta| {
                    let operand = meta.query_advice(lane, Rotation(operand));
                    vec![(meta.query_fixed(enabled, Rotation::cur()) * operand, bytes)]
                });
            }
        }
        Columns { lanes, enabled, bytes, public }
    }

    fn synthesize(&self, columns: Columns, mut layouter: impl Layouter<Fr>) -> Result<(), Error> {
        layouter.assign_table(
            || "bytes",
            |mut table| {
                let mut bytes = (0..=u8::MAX).map(u64::from);
                bytes.try_for_each(|byte| {
                    table.assign_cell(|| "byte", columns.bytes, byte as usize, || Value::known(Fr::from(byte)))
                })
            },
        )?;
        let (first, last) = layouter.assign_region(
            || "sum",
            |mut region| {
                for step in 0..self.steps {
                    region.assign_fixed(columns.enabled, CELLS * step, Fr::one());
                }
                let mut sum = Value::known(0);
                let mut ends = Vec::with_capacity(LANES);
                for (lane, column) in columns.lanes.into_iter().enumerate() {
                    let first = region.assign_advice(column, 0, sum.map(Fr::from)).cell();
                    let mut last = first;
                    for step in 0..self.steps {
                        let at = lane * self.steps + step;
                        let pair = self.pairs.as_ref().map(|pairs| (u64::from(pairs[at].0), u64::from(pairs[at].1)));
                        let row = CELLS * step;
                        region.assign_advice(column, row + 1, pair.map(|(left, _)| Fr::from(left)));
                        region.assign_advice(column, row + 2, pair.map(|(_, right)| Fr::from(right)));
                        sum = sum.zip(pair).map(|(sum, (left, right))| sum + left * right);
                        last = region.assign_advice(column, row + CELLS, sum.map(Fr::from)).cell();
                    }
                    ends.push((first, last));
                }
                // Each column continues the sum of the previous column.
                ends.windows(2).for_each(|pair| region.constrain_equal(pair[0].1, pair[1].0));
                Ok((ends[0].0, ends[LANES - 1].1))
            },
        )?;
        layouter.constrain_instance(first, columns.public, 0);
        layouter.constrain_instance(last, columns.public, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halo2_axiom::dev::MockProver;

    #[test]
    fn only_the_inner_product_satisfies_the_circuit() -> anyhow::Result<()> {
        let (log_rows, mut rng) = (10, StdRng::seed_from_u64(1));
        let (circuit, product) = InnerProduct::random(1 << log_rows, &mut rng);
        let satisfied = |product| {
            let mock = MockProver::run(log_rows, &circuit, vec![instance(product).to_vec()])?;
            anyhow::Ok(mock.verify().is_ok())
        };
        anyhow::ensure!(satisfied(product)? && !satisfied(product + Fr::one())?);
        Ok(())
    }
}
