#!/usr/bin/env bash
# Writes the tables of docs/experiments/ablation.md: what each mechanism of the allocator contributes, on the workloads it was tuned on and
# on others. `constants` as the first argument measures each constant at half and at twice its value instead; all arms together then take up
# to 40 GB. All runs take hours on 2 cores. RUNS selects some of them by the names below; the default is all. SUFFIX keeps the runs of
# another machine separate: SUFFIX=-16 fills the tables for 16 cores.
set -euo pipefail
cd "$(dirname "$0")/.."

arms=${1:-ablation}
rounds=${ROUNDS:-6} processes=${PROCESSES:-3}
runs=target/prove-bench/$arms
measured=()

measure() {
    local name=$1${SUFFIX-}
    [[ -n ${RUNS-} && " $RUNS " != *" $1 "* ]] && return
    shift
    rm -rf "${runs:?}/$name"
    cargo prove-bench "$@" --allocators "zk-alloc,$arms" --rounds "$rounds" --processes "$processes" --out "$runs/$name"
    measured+=("$name")
}

if [[ $arms == constants ]]; then
    measure poseidon2 plonky3 --workloads poseidon2
    measure stwo stwo --log-rows 16
else
    measure plonky3 plonky3
    measure poseidon2-17 plonky3 --workloads poseidon2 --log-rows 17
    measure plonky2 plonky2
    measure jolt jolt
    measure winterfell winterfell
    measure stwo stwo --log-rows 18
    measure spartan2 spartan2
    measure groth16 groth16
fi
measure miden miden --log-rows 12

# Writes the tables at the end, so that all runs measure the same clean commit.
for name in "${measured[@]}"; do
    cargo prove-bench report "$runs/$name"/* --splice "$arms-$name"
done
