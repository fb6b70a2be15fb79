#!/usr/bin/env bash
# Fills in the tables of README.md and docs/results.md: every prover under glibc, the best-tuned peers and zk-alloc, all at one commit. On 2
# cores, the builds take 40 minutes and the runs an hour and a half. RUNS selects some runs by the names below; the default is all. During
# the runs, leave the machine idle and commit nothing, because each run records the commit.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=target/prove-bench/results
measured=()

measure() {
    local name=$1
    shift
    [[ -n ${RUNS-} && " $RUNS " != *" $name "* ]] && return
    rm -rf "${runs:?}/$name"
    cargo prove-bench "$@" --out "$runs/$name"
    # bb skips a size that does not fit in memory.
    if [[ -d $runs/$name ]]; then measured+=("$name"); fi
}
six() {
    measure "$@" --allocators glibc,jemalloc-tuned,mimalloc-tuned,snmalloc,tcmalloc,zk-alloc
}

# A verdict needs 6 rounds in 4 processes. Sizes below the default keep a proof under 12 s.
six plonky3 plonky3
six plonky2 plonky2 --rounds 6 --processes 4
six jolt jolt --rounds 6 --processes 4
six stwo stwo --rounds 6 --processes 4
six winterfell winterfell --rounds 12 --processes 4
six spartan2 spartan2 --rounds 12 --processes 4
six groth16 groth16 --rounds 6 --processes 4
six halo2 halo2 --log-rows 14 --rounds 6 --processes 4
six miden miden --log-rows 16 --rounds 6 --processes 4
six openvm openvm --rounds 6 --processes 4
six sp1 sp1 --rounds 6 --processes 4
six triton triton --log-rows 14 --rounds 6 --processes 4
# A C++ program, with preloaded allocators. It is skipped if its npm package is not installed.
if [[ -d provers-bench/provers/bb/node_modules ]]; then
    for size in 14 17 19; do
        measure "bb-$size" bb --log-rows "$size" --rounds "$((size < 19 ? 20 : 6))" --allocators glibc,jemalloc-tuned,mimalloc-tuned,tcmalloc,zk-alloc
    done
fi
# The processes of all arms are alive at once and take 3 GB each, so fewer arms fit in memory.
measure big17 plonky3 --workloads poseidon2,keccak --log-rows 17 --rounds 6 --processes 4 --allocators glibc,jemalloc-tuned,mimalloc-tuned,zk-alloc

# Writes the tables at the end, so that all runs measure the same clean commit.
for name in "${measured[@]}"; do
    cargo prove-bench report "$runs/$name"/* --splice "$name"
done
