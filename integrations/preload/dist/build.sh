#!/usr/bin/env bash
# Builds the library for any machine of an architecture, and checks it: build.sh ARCHITECTURE
source "$(dirname "$0")/common.sh"
arch=$1
target=$arch-unknown-linux-gnu
into=$work/$arch

# The variable replaces the flags of .cargo/config.toml, which name the processor of this machine. No path of this machine stays in the library.
unset CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS RUSTC_WRAPPER CARGO_BUILD_RUSTC_WRAPPER
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="--remap-path-prefix=$root=/zk-alloc --remap-path-prefix=$cargo_home=/cargo"
# The caches of zig and cargo-zigbuild.
export XDG_CACHE_HOME=$work/cache PATH=$work/tools/bin:$PATH
say "building $library for $arch and glibc $glibc with $(rustc --version)"
cd "$root"
CARGO_TARGET_DIR=$work/build cargo zigbuild --release --locked --package "$package" --target "$target.$glibc"

stage "$into"
cp "$work/build/$target/release/$library" "$into/$library"
# zig links with the loader, too. The loader is in the process anyhow, and has another name under other C libraries.
while read -r loader; do
    patchelf --remove-needed "$loader" "$into/$library"
done < <(readelf --dynamic --wide "$into/$library" | sed -n 's/.*(NEEDED).*\[\(ld-linux.*\)\]/\1/p')
"$preload/dist/check.sh" "$arch" "$into/$library"
