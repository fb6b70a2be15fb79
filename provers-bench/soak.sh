#!/usr/bin/env bash
# Whether the gate can be believed, by Plonky3's provers: unchanged code must pass every time, and code that is made worse must not.
# usage: provers-bench/soak.sh [RUNS [OPTIONS OF prove-bench check]]; for a machine that does nothing else
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-20}
shift || true

target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
# Built once; a driver that cargo did not start builds nothing.
cargo prove-bench check plonky3 --rounds 1 --workloads poseidon2 >/dev/null || true
log=$target/prove-bench/soak.log
mkdir -p "$(dirname "$log")"
: >"$log"

# The exit code of one check, whose output goes to the log.
check() {
    local code=0
    "$target/provers/plonky3/release/bench-plonky3" check --baseline provers-bench/provers/plonky3/baseline.toml "$@" >>"$log" 2>&1 || code=$?
    # Neither is an answer of the gate: wrong usage or an unusable baseline, and Ctrl-C.
    if ((code >= 2)); then
        tail -n 3 "$log" >&2
        exit "$code"
    fi
    return "$code"
}

passed=0
for ((run = 1; run <= runs; run++)); do
    if check "$@"; then
        passed=$((passed + 1))
    else
        echo "run $run failed:"
        tail -n 5 "$log"
    fi
done
echo "unchanged code: $passed of $runs runs passed"

failed=0
for fault in slow=15 page-faults; do
    if PROVE_BENCH_TEST_FAULT="zk-alloc:*:$fault" check "$@"; then
        echo "$fault: PASSED, and must not"
    else
        failed=$((failed + 1))
        echo "$fault: failed, as it must:"
        tail -n 5 "$log"
    fi
done
echo "everything is in $log"
((passed == runs && failed == 2))
