#!/usr/bin/env bash
# The bench of copies on a machine that has a GPU and no Rust. `build` makes one program, here. Take it along with this script, and `run`
# names the machine and measures it, there: about two minutes.
# usage: integrations/cuda/copies.sh build | run [MIB]
# The exit codes of `run` are those of examples/copies.rs; 124 if it has not ended after 6 minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=target/copies/release/examples/copies

case ${1-} in
    build)
        # Not for the processor of this machine, as .cargo/config.toml has it.
        case $(uname -m) in x86_64) cpu=x86-64-v3 ;; *) cpu=generic ;; esac
        RUSTFLAGS="-C target-cpu=$cpu -C strip=symbols" \
            cargo build --release --package zk-alloc-cuda --example copies --target-dir target/copies
        ls -l "$program"
        ;;
    run)
        shift
        # What is not installed there is left out.
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
