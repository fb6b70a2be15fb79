//! KoalaBear's extension field, and Merkle trees under Poseidon2. Several of Plonky3's workloads share them.

use p3_field::{Field, extension::BinomialExtensionField};
use p3_koala_bear::{KoalaBear, Poseidon2KoalaBear, default_koalabear_poseidon2_16, default_koalabear_poseidon2_24};
use p3_merkle_tree::MerkleTreeMmcs;
use p3_symmetric::{PaddingFreeSponge, TruncatedPermutation};

pub(crate) type Challenge = BinomialExtensionField<KoalaBear, 4>;
type Packing = <KoalaBear as Field>::Packing;
pub(crate) type Perm16 = Poseidon2KoalaBear<16>;
pub(crate) type Perm24 = Poseidon2KoalaBear<24>;
pub(crate) type Poseidon2Mmcs = MerkleTreeMmcs<
    Packing,
    Packing,
    PaddingFreeSponge<Perm24, 24, 16, 8>,
    TruncatedPermutation<Perm16, 2, 8, 16>,
    2,
    8,
>;

/// The Poseidon2 Merkle trees of Plonky3's examples: 24 wide for leaves and 16 wide for nodes.
pub(crate) fn poseidon2_mmcs() -> Poseidon2Mmcs {
    let hash = PaddingFreeSponge::new(default_koalabear_poseidon2_24());
    Poseidon2Mmcs::new(hash, TruncatedPermutation::new(default_koalabear_poseidon2_16()), 0)
}
