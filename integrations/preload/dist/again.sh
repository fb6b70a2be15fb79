#!/usr/bin/env bash
# Builds the packages of the last commit again, in another folder with its own tools, and compares them with the packages in target/dist.
source "$(dirname "$0")/common.sh"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

[ -f "$dist/SHA256SUMS" ] || fail "there are no packages in $dist to compare with: cargo make dist makes them"
if changed; then
    fail "the sources have uncommitted changes, but the comparison needs a build of the last commit; nothing was built"
fi
git clone --quiet "$root" "$copy/elsewhere"
CARGO_TARGET_DIR=$copy/target "$copy/elsewhere/integrations/preload/dist/run.sh" --untried
if ! diff "$dist/SHA256SUMS" "$copy/target/dist/SHA256SUMS"; then
    fail "a second build of the same commit made other packages"
fi
say "a second build, in another folder, made the same packages"
