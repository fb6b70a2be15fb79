#!/usr/bin/env bash
# Measures copies on a machine that has a GPU and no Rust. On this machine, `build` builds the program. Copy the program and this script to
# the other machine, with the same relative paths. There, `run` describes the machine and measures the copies in about two minutes.
# usage: integrations/cuda/copies.sh build | run [MIB]
# `run` exits with the code of examples/copies.rs, or 124 if the program takes more than 6 minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=target/copies/release/examples/copies

case ${1-} in
    build)
        # Overrides .cargo/config.toml, which targets this machine's processor.
        case $(uname -m) in x86_64) cpu=x86-64-v3 ;; *) cpu=generic ;; esac
        RUSTFLAGS="-C target-cpu=$cpu -C strip=symbols" \
            cargo build --release --package zk-alloc-cuda --example copies --target-dir target/copies
        ls -l "$program"
        ;;
    run)
        shift
        # Skips commands and files that the machine lacks.
        {
            uname -srm
            lscpu | grep -E '^(Model name|CPU\(s\)|NUMA node\(s\)):'
            grep MemTotal /proc/meminfo
            cat /sys/kernel/mm/transparent_hugepage/enabled
            nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader
        } 2>/dev/null || true
        timeout 360 "$program" "$@"
        ;;
    *)
        echo 'usage: integrations/cuda/copies.sh build | run [MIB]' >&2
        exit 2
        ;;
esac
