#!/usr/bin/env bash
# Runs the proving service and the node under load: every proof must verify, no data may be corrupted, no memory may leak, and no budget may
# be exceeded.
# usage: provers-bench/examples/soak.sh [MINUTES]; the service, the service with workers, and the node each take a third of this time
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=${1:-10}
SOAK_MINUTES=$(awk -v minutes="$minutes" 'BEGIN { print minutes / 3 }')
export SOAK_MINUTES
# Long enough for three proofs of the node.
seconds=$(awk -v minutes="$minutes" 'BEGIN { seconds = int(minutes * 20); print seconds < 12 ? 12 : seconds }')

service=(--quiet --release --manifest-path provers-bench/examples/service/Cargo.toml --target-dir target/provers/service)
cargo test "${service[@]}" --test service -- --ignored --nocapture
cargo prove-bench --package provers-bench/examples/node node --every 4s --for "${seconds}s" --allocators zk-alloc
