#!/usr/bin/env bash
# Updates the lock file of each prover's package to match the manifests in this repository. Versions that are already locked do not change.
set -euo pipefail
cd "$(dirname "$0")"

for package in provers/* examples/your-prover examples/service examples/node; do
    cargo metadata --format-version 1 --manifest-path "$package/Cargo.toml" >/dev/null
done
git status --short -- provers examples
