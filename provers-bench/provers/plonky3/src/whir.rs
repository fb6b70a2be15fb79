//! Plonky3's multilinear commitment scheme, WHIR, over KoalaBear: one polynomial, committed to and opened.
//!
//! This is the example of p3-whir, with the example's parameters. Unlike the AIRs, it has no single huge buffer. The
//! polynomial, its codeword and the tree over the codeword have similar sizes, and every round folds them into smaller
//! ones.

use anyhow::Context;
use p3_challenger::DuplexChallenger;
use p3_commit::{Mmcs, MultilinearPcs};
use p3_dft::Radix2DFTSmallBatch;
use p3_koala_bear::{KoalaBear, default_koalabear_poseidon2_16};
use p3_sumcheck::layout::{Layout, SuffixProver, Table};
use p3_sumcheck::{OpeningBatch, OpeningProtocol, TableShape, TableSpec};
use p3_whir::{
    DEFAULT_MAX_POW, FoldingFactor, PcsProof, ProtocolParameters, SecurityAssumption, WhirConfig, WhirProver,
};
use rand::{SeedableRng, rngs::SmallRng};

use crate::{Challenge, Perm16, Poseidon2Mmcs, poseidon2_mmcs};
use provers_bench::Workload;

type Challenger = DuplexChallenger<KoalaBear, Perm16, 16, 8>;
type Dft = Radix2DFTSmallBatch<KoalaBear>;
type Suffix = SuffixProver<KoalaBear, Challenge>;
type Pcs = WhirProver<Challenge, KoalaBear, Dft, Poseidon2Mmcs, Challenger, Suffix>;

/// Bits of security of each step of the protocol.
const SECURITY_LEVEL: usize = 90;
/// Number of variables that a round removes by folding.
const FOLDING: usize = 5;
/// Base-2 logarithm of the first codeword's blowup; each round adds `FOLDING - 1`.
const LOG_BLOWUP: usize = 1;

/// A multilinear polynomial of `log_rows` variables, committed to and opened at one point drawn from its commitment.
///
/// Its `2^log_rows` evaluations are random. Each round has a proof of work of up to 16 bits, as in the example. The search for the proof of
/// work allocates nothing and takes a random time, which is most of the proof's time for up to `2^14` evaluations. With at most 16 bits of
/// work, the extension field suffices for at most 21 variables.
pub struct Whir {
    pcs: Pcs,
    /// The openings in the protocol: one polynomial at one point.
    protocol: OpeningProtocol,
    /// The transcript from which prover and verifier start.
    challenger: Challenger,
    log_rows: usize,
}

impl Workload for Whir {
    /// A commitment and its opening. The point is not stored, because the commitment determines it.
    type Proof = (<Poseidon2Mmcs as Mmcs<KoalaBear>>::Commitment, PcsProof<KoalaBear, Challenge, Poseidon2Mmcs>);

    fn setup(log_rows: u32) -> anyhow::Result<Self> {
        let log_rows = log_rows as usize;
        let folding_factor = FoldingFactor::Constant(FOLDING);
        let (rounds, _) = folding_factor
            .compute_number_of_rounds(log_rows)
            .with_context(|| format!("folding {log_rows} variables by {FOLDING} a round"))?;
        let parameters = ProtocolParameters {
            starting_log_inv_rate: LOG_BLOWUP,
            // Each round halves the domain, so the rate falls.
            round_log_inv_rates: (1..=rounds).map(|round| LOG_BLOWUP + round * (FOLDING - 1)).collect(),
            folding_factor,
            soundness_type: SecurityAssumption::CapacityBound,
            security_level: SECURITY_LEVEL,
            pow_bits: DEFAULT_MAX_POW,
        };
        let config = WhirConfig::new_with_initial_claims(log_rows, parameters, 1)
            .with_context(|| format!("configuring WHIR for {log_rows} variables"))?;
        // Creates the table of all roots of unity outside any phase, because it lives until the process exits.
        let dft = Dft::new(1 << config.max_fft_size());
        let opening = OpeningBatch::new(vec![0], vec![]);
        Ok(Self {
            pcs: Pcs::new(config, dft, poseidon2_mmcs()),
            protocol: OpeningProtocol::new(vec![TableSpec::new(TableShape::new(log_rows, 1), vec![opening])]),
            challenger: Challenger::new(default_koalabear_poseidon2_16()),
            log_rows,
        })
    }

    fn prove(&self, seed: u64) -> anyhow::Result<Self::Proof> {
        zk_alloc::phase(|| {
            let mut challenger = self.challenger.clone();
            let polynomial = Table::rand(&mut SmallRng::seed_from_u64(seed), 1, self.log_rows);
            let witness = Suffix::new_witness(vec![polynomial], FOLDING);
            let (commitment, data) = self.pcs.commit(witness, &mut challenger)?;
            let proof = self.pcs.open(data, self.protocol.clone(), &mut challenger)?;
            Ok((commitment, proof))
        })
    }

    fn verify(&self, (commitment, proof): &Self::Proof) -> anyhow::Result<()> {
        let mut challenger = self.challenger.clone();
        Ok(self.pcs.verify(commitment, proof, &mut challenger, self.protocol.clone())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the verifier accepted everything, the bench would not detect an allocator that corrupts proofs.
    #[test]
    fn a_proof_verifies_only_with_its_own_commitment_and_value() {
        let whir = Whir::setup(12).unwrap();
        let [mut first, mut second] = [1, 2].map(|seed| whir.prove(seed).unwrap());
        whir.verify(&first).unwrap();
        whir.verify(&second).unwrap();

        std::mem::swap(&mut first.0, &mut second.0);
        assert!(whir.verify(&first).is_err());
        std::mem::swap(&mut first.0, &mut second.0);
        std::mem::swap(&mut first.1.evals, &mut second.1.evals);
        assert!(whir.verify(&first).is_err());
    }

    /// The security level must be reachable at every size that the command line accepts.
    #[test]
    fn every_size_has_a_configuration() {
        for log_rows in 10..=21 {
            assert_eq!(Whir::setup(log_rows).unwrap().pcs.num_vars(), log_rows as usize);
        }
        for log_rows in [4, 22] {
            assert!(Whir::setup(log_rows).is_err(), "{log_rows} variables: fewer than a round folds, or too many");
        }
    }
}
