#!/usr/bin/env bash
# Runs the bench of a package outside of the workspace: prints its table, makes the figures a baseline, and checks new figures against it.
# usage: run.sh [OPTIONS OF check]
set -euo pipefail
cd "$(dirname "$0")/../../.."

bench=(cargo prove-bench --package provers-bench/examples/your-prover)
baseline=$(mktemp -d)/baseline.toml
trap 'rm -rf "$(dirname "$baseline")"' EXIT

"${bench[@]}" mine --log-rows 12 --rounds 3
"${bench[@]}" check --baseline "$baseline" --bless --reason "the first figures"
"${bench[@]}" check --baseline "$baseline" "$@"
