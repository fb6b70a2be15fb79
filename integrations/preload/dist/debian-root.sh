#!/usr/bin/env bash
# Prints the folder of a small Debian, whose C library is as old as the mirror has: debian-root.sh ARCHITECTURE
# For another architecture than this machine's, programs are unpacked and no package is set up. Says why if there is none.
source "$(dirname "$0")/common.sh"
arch=$1
mirror=http://deb.debian.org/debian
releases=(bullseye bookworm)
options=(--variant=minbase "--arch=$(debian "$arch")")
[ "$arch" = "$(uname -m)" ] || options+=(--foreign)

command -v debootstrap >/dev/null || fail "debootstrap is not installed (Debian, Ubuntu: apt-get install debootstrap)"
[ "$(id -u)" = 0 ] || fail "debootstrap needs root"
for release in "${releases[@]}"; do
    folder=$work/roots/$release-$arch
    if [ ! -e "$folder.made" ]; then
        say "unpacking Debian $release for $arch from $mirror" >&2
        rm -rf "$folder"
        mkdir -p "$work/roots"
        debootstrap "${options[@]}" "$release" "$folder" "$mirror" >"$folder.log" 2>&1 || continue
        touch "$folder.made"
    fi
    echo "$folder"
    exit
done
fail "debootstrap could unpack none of ${releases[*]} for $arch ($work/roots/*.log)"
