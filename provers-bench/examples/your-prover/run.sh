#!/usr/bin/env bash
# The bench of a package outside of the workspace: its table, and a gate that holds it to what it just was.
# usage: run.sh [OPTIONS OF check]
set -euo pipefail
cd "$(dirname "$0")/../../.."

bench=(cargo prove-bench --package provers-bench/examples/your-prover)
baseline=$(mktemp -d)/baseline.toml
trap 'rm -rf "$(dirname "$baseline")"' EXIT

"${bench[@]}" mine --log-rows 12 --rounds 3
"${bench[@]}" check --baseline "$baseline" --bless --reason "the first figures"
"${bench[@]}" check --baseline "$baseline" "$@"
