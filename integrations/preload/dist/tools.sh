#!/usr/bin/env bash
# Installs the compiler and the tools that build the packages, each in the version that the packages are made with.
source "$(dirname "$0")/common.sh"

if ! rustup toolchain list | grep -q "^$rust-"; then
    rustup toolchain install "$rust" --profile minimal --no-self-update ||
        fail "the packages are built with Rust $rust (.ci/toolchain), and rustup could not install it; nothing was built"
fi
wanted=$preload/dist/tools.txt
if ! cmp -s "$wanted" "$work/tools/installed"; then
    rm -rf "$work/tools"
    python3 -m venv "$work/tools" || fail "python3 could not make $work/tools (Debian: apt-get install python3-venv); nothing was built"
    "$work/tools/bin/pip" install --quiet --require-hashes --only-binary :all: -r "$wanted" ||
        fail "pip could not install the tools of $wanted; nothing was built"
    cp "$wanted" "$work/tools/installed"
fi
