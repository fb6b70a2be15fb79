#!/usr/bin/env bash
# Builds libzk_alloc.so for other machines, packs it as .tar.gz, .deb and wheel into target/dist, and tries the packages here.
# docs/preload.md describes how to install them. Needs rustup, python3 with venv, readelf, GNU tar and dpkg-deb.
#   run.sh [--untried]
source "$(dirname "$0")/common.sh"
here=$preload/dist

# Installs the compiler and the tools that build the packages, each in the version that the packages require.
tools() {
    if ! rustup toolchain list | grep -q "^$rust-"; then
        rustup toolchain install "$rust" --profile minimal --no-self-update ||
            fail "the packages are built with Rust $rust (.ci/toolchain), and rustup could not install it; nothing was built"
    fi
    wanted=$here/tools.txt
    if ! cmp -s "$wanted" "$work/tools/installed"; then
        rm -rf "$work/tools"
        python3 -m venv "$work/tools" || fail "python3 could not make $work/tools (Debian: apt-get install python3-venv); nothing was built"
        "$work/tools/bin/pip" install --quiet --require-hashes --only-binary :all: -r "$wanted" ||
            fail "pip could not install the tools of $wanted; nothing was built"
        cp "$wanted" "$work/tools/installed"
    fi
}

# Builds the library for any machine of an architecture, and checks it: build ARCHITECTURE
build() (
    arch=$1
    target=$arch-unknown-linux-gnu
    into=$work/$arch

    # RUSTFLAGS replaces the flags of .cargo/config.toml, which target this machine's processor. It also keeps this machine's paths out of
    # the library.
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
    # zig also links the library with the loader. The loader is in every process anyway, and has a different name with other C libraries.
    while read -r loader; do
        patchelf --remove-needed "$loader" "$into/$library"
    done < <(readelf --dynamic --wide "$into/$library" | sed -n 's/.*(NEEDED).*\[\(ld-linux.*\)\]/\1/p')
    check "$arch" "$into/$library"
)

# Checks that a library will run on the systems its packages name: check ARCHITECTURE LIBRARY
check() (
    arch=$1
    file=$2
    cargo_home=${CARGO_HOME:-$HOME/.cargo}

    case $arch in
        x86_64) machine='Advanced Micro Devices X86-64' ;;
        aarch64) machine=AArch64 ;;
        *) fail "no machine is known for the architecture $arch" ;;
    esac
    readelf --file-header "$file" | grep -q "Machine: *$machine" || fail "$file is not for $arch; no package was made"

    needed=$("$here/needs.sh" "$file") || fail "no package was made"

    versions=$(readelf --version-info --wide "$file" | sed -n 's/.*Name: \([^ ]*\) .*/\1/p' | sort -Vu)
    [ -n "$versions" ] || fail "readelf shows no versions that $file needs, so they cannot be checked; no package was made"
    while read -r needs; do
        newest=$(printf '%s\n' "$needs" "GLIBC_$glibc" | sort -V | tail -n 1)
        [[ $needs == GLIBC_[0-9]* && $newest == "GLIBC_$glibc" ]] ||
            fail "$file needs $needs, but must run with glibc $glibc: readelf --dyn-syms shows the symbol; no package was made"
    done <<<"$versions"

    exported=$(readelf --dyn-syms --wide "$file" | awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK") { print $8 }')
    grep -qx malloc <<<"$exported" || fail "$file does not export malloc; no package was made"
    # Otherwise other libraries would call such a function here instead of the one in their own libgcc_s.so.1.
    inner=$(grep -E '^(_Unwind_|__register_frame|__deregister_frame|__gcc_|__unw_|__(u?div|u?mod|mul)[a-z]i)' <<<"$exported" || true)
    [ -z "$inner" ] || fail "$file exports functions of its compiler: ${inner//$'\n'/ }; no package was made"

    for path in "$root" "$cargo_home"; do
        if grep -qaF "$path/" "$file"; then
            fail "$file contains the path $path of this machine, and would differ on another; no package was made"
        fi
    done
    say "$arch needs $needed, at most $(tail -n 1 <<<"$versions"), and exports $(wc -l <<<"$exported") symbols"
)

# Packs the library as an archive.
archive() (
    arch=$1
    name=$package-$version-$arch
    into=$work/$arch/tar/$name

    stage "$work/$arch/tar"
    mkdir -p "$into/lib" "$into/include"
    cp "$work/$arch/$library" "$into/lib/"
    cp "$preload/include/zk_alloc.h" "$into/include/"
    cp "$root/LICENSE-MIT" "$root/LICENSE-APACHE" "$work/$arch/THIRD-PARTY.md" "$preload/dist/README.md" "$into/"
    settle "$into"
    tar --create --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --directory "$work/$arch/tar" "$name" | gzip -9n >"$dist/$name.tar.gz"
)

# Prints text as the lines of a control field, which must not contain empty lines.
indented() {
    sed 's/^[[:space:]]*$/./; s/^/ /' "$1"
}

# Packs the library for Debian and Ubuntu.
debian_package() (
    arch=$1
    folder=usr/lib/$arch-linux-gnu
    into=$work/$arch/deb
    documents=usr/share/doc/$package
    # Without a home page, the line must be omitted: an empty line would end the fields.
    home=${homepage:+$'\n'Homepage: $homepage}

    stage "$into"
    mkdir -p "$into/DEBIAN" "$into/$folder" "$into/usr/include" "$into/$documents"
    cp "$work/$arch/$library" "$into/$folder/"
    cp "$preload/include/zk_alloc.h" "$into/usr/include/"
    cp "$preload/dist/README.md" "$work/$arch/THIRD-PARTY.md" "$into/$documents/"
    {
        printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: zk-alloc\n'
        printf 'Comment: THIRD-PARTY.md has the notices of the software that is linked into the library.\n\n'
        printf 'Files: *\nCopyright: the zk-alloc developers\nLicense: MIT or Apache-2.0\n'
        printf '\nLicense: MIT\n'
        indented "$root/LICENSE-MIT"
        printf '\nLicense: Apache-2.0\n'
        indented "$root/LICENSE-APACHE"
    } >"$into/$documents/copyright"
    size_kib=$(find "$into/usr" -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
    cat >"$into/DEBIAN/control" <<CONTROL
Package: $package
Version: $version
Architecture: $(debian "$arch")
Multi-Arch: same
Maintainer: $maintainer
Installed-Size: $size_kib
Depends: libc6 (>= $glibc)
Section: libs
Priority: optional$home
Description: memory allocator for zero-knowledge provers, for LD_PRELOAD
 libzk_alloc.so replaces the C library's allocation functions in programs
 that are not rebuilt. It keeps the memory of a proof for the next one.
 .
 No program uses it unless LD_PRELOAD names it.
CONTROL
    (cd "$into" && find usr -type f | sort | xargs md5sum) >"$into/DEBIAN/md5sums"
    settle "$into"
    DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build "$into" "$dist/${package}_${version}_$(debian "$arch").deb" >/dev/null
)

case ${1-} in
    '' | --untried) ;;
    *) fail "there is no option $1, only --untried, which does not try the packages; nothing was built" ;;
esac
for program in rustup python3 readelf tar gzip dpkg-deb sha256sum; do
    command -v "$program" >/dev/null || fail "$program is needed to build the packages, and is not installed; nothing was built"
done
mkdir -p "$work"
find "$dist" -maxdepth 1 -type f -delete
if changed; then
    say "the sources have uncommitted changes: the packages are not those of a commit"
fi

tools
missing=()
built=()
for arch in "${architectures[@]}"; do
    if rustup target list --installed | grep -qx "$arch-unknown-linux-gnu" || rustup target add "$arch-unknown-linux-gnu"; then
        built+=("$arch")
    else
        missing+=("$arch")
    fi
done
[ "${#built[@]}" != 0 ] || fail "rustup has Rust's standard library for none of: ${missing[*]}; nothing was built"

for arch in "${built[@]}"; do
    build "$arch"
    python3 "$here/notices.py" "$arch-unknown-linux-gnu" "$work/tools" >"$work/$arch/THIRD-PARTY.md"
done
for arch in "${built[@]}"; do
    # Debian's packages for two architectures can be installed together only if they have the same documents.
    cmp -s "$work/${built[0]}/THIRD-PARTY.md" "$work/$arch/THIRD-PARTY.md" ||
        fail "THIRD-PARTY.md of $arch and ${built[0]} in $work differ: other crates are linked; no package was made"
    archive "$arch"
    debian_package "$arch"
    python3 "$preload/python/wheel.py" "$version" "$arch" "$work/$arch" "$dist" "$maintainer" "$homepage"
done
(cd "$dist" && sha256sum -- *.tar.gz *.deb *.whl >SHA256SUMS)

[ "${1-}" = --untried ] || "$here/try.sh" "${built[@]}"
say "made in $dist:"
cat "$dist/SHA256SUMS"
if [ "${#missing[@]}" != 0 ]; then
    fail "rustup could not add Rust's standard library for: ${missing[*]}; only the packages for ${built[*]} were made"
fi
