#!/usr/bin/env bash
# Packs the library as an archive, and for Debian and Ubuntu: pack.sh ARCHITECTURE
source "$(dirname "$0")/common.sh"

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

# A text as the lines of a field, of which none is empty.
indented() {
    sed 's/^[[:space:]]*$/./; s/^/ /' "$1"
}

# Packs the library for Debian and Ubuntu.
debian_package() (
    arch=$1
    folder=usr/lib/$arch-linux-gnu
    into=$work/$arch/deb
    documents=usr/share/doc/$package
    # An empty line would end the fields.
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

archive "$1"
debian_package "$1"
