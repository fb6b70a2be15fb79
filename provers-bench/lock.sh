#!/usr/bin/env bash
# Brings the lock file of each prover's package up to date with the manifests of this repository. Versions that are already locked stay.
set -euo pipefail
cd "$(dirname "$0")"

for package in provers/* examples/your-prover examples/service examples/node; do
    cargo metadata --format-version 1 --manifest-path "$package/Cargo.toml" >/dev/null
done
git status --short -- provers examples
