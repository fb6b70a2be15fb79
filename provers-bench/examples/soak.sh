#!/usr/bin/env bash
# The proving service and the node under load: every proof verified, nothing corrupted, no leak, memory within its budget.
# usage: provers-bench/examples/soak.sh [MINUTES]; a third each for the service, the service with workers, and the node
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=${1:-10}
SOAK_MINUTES=$(awk -v minutes="$minutes" 'BEGIN { print minutes / 3 }')
export SOAK_MINUTES
# Three proofs at least.
seconds=$(awk -v minutes="$minutes" 'BEGIN { seconds = int(minutes * 20); print seconds < 12 ? 12 : seconds }')

service=(--quiet --release --manifest-path provers-bench/examples/service/Cargo.toml --target-dir target/provers/service)
cargo test "${service[@]}" --test service -- --ignored --nocapture
cargo prove-bench --package provers-bench/examples/node node --every 4s --for "${seconds}s" --allocators zk-alloc
