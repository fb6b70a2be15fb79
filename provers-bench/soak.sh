#!/usr/bin/env bash
# Tests the performance gate on Plonky3's provers: unchanged code must pass every time, and deliberately worsened code must fail.
# usage: provers-bench/soak.sh [RUNS [OPTIONS OF prove-bench check]]; run it on an idle machine
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-20}
shift || true

target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
# Builds everything once. Later checks start the driver without cargo, so it builds nothing.
cargo prove-bench check plonky3 --rounds 1 --workloads poseidon2 >/dev/null || true
log=$target/prove-bench/soak.log
mkdir -p "$(dirname "$log")"
: >"$log"

# Runs one check, appends its output to the log, and returns its exit code.
check() {
    local code=0
    "$target/provers/plonky3/release/bench-plonky3" check --baseline provers-bench/provers/plonky3/baseline.toml "$@" >>"$log" 2>&1 || code=$?
    # Codes of 2 and above are not a verdict of the gate: wrong usage, an unusable baseline, or Ctrl-C.
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
        echo "$fault: PASSED, but must fail"
    else
        failed=$((failed + 1))
        echo "$fault: failed, as it must:"
        tail -n 5 "$log"
    fi
done
echo "the output of all checks is in $log"
((passed == runs && failed == 2))
