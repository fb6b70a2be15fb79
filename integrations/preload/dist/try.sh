#!/usr/bin/env bash
# Tries the packages with the programs that this machine can run, and names the packages that it could not try: try.sh ARCHITECTURE...
source "$(dirname "$0")/common.sh"

# Prints the folder of a small Debian, with the oldest C library that the mirror has: debian_root ARCHITECTURE
# For an architecture other than this machine's, it unpacks the packages, but does not configure them. Prints the reason if it can't make
# the folder.
debian_root() (
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
)

# Unpacks the archive and runs a program with its library.
archive() (
    arch=$1
    name=$package-$version-$arch
    into=$work/try/archive

    stage "$into"
    tar -xf "$dist/$name.tar.gz" -C "$into"
    ZK_ALLOC_REPORT=1 LD_PRELOAD=$into/$name/lib/$library \
        python3 -c 'print(len([bytearray(1 << 20) for _ in range(50)]))' >"$into/out" 2>"$into/report"
    [ "$(cat "$into/out")" = 50 ] || fail "python3 printed $(cat "$into/out") instead of 50 with the library of $name.tar.gz"
    served "$name.tar.gz with python3" "$into/report"
    if command -v cc >/dev/null; then
        echo '#include <zk_alloc.h>' | cc -x c -fsyntax-only -I"$into/$name/include" - || fail "the header of $name.tar.gz does not compile"
    fi
)

# Installs the wheel into a new virtual environment and runs programs with it.
wheel() (
    arch=$1
    wheel=zk_alloc-$version-py3-none-manylinux_${glibc/./_}_$arch.whl
    into=$work/try/wheel

    # Fails unless a program ends with this exit code: ends CODE PROGRAM [ARGUMENT...]
    ends() {
        local expected=$1 code=0
        shift
        # The shell prints a message if a signal ends a program. Here that is not an error.
        { "$into/bin/python" -m zk_alloc run "$@" >/dev/null 2>"$into/said"; } 2>/dev/null || code=$?
        [ "$code" = "$expected" ] || fail "python -m zk_alloc run $* ended with $code instead of $expected: $(cat "$into/said")"
    }

    rm -rf "$into"
    python3 -m venv "$into"
    "$into/bin/pip" install --quiet --no-index "$dist/$wheel"
    ZK_ALLOC_REPORT=1 "$into/bin/python" -m zk_alloc run \
        python3 -c 'print(len([bytearray(1 << 20) for _ in range(50)]))' >"$into/out" 2>"$into/report"
    [ "$(cat "$into/out")" = 50 ] || fail "python3 printed $(cat "$into/out") instead of 50 with $wheel"
    served "$wheel with python3" "$into/report"

    found=$("$into/bin/python" -m zk_alloc path)
    cmp -s "$found" "$work/$arch/$library" || fail "$wheel: python -m zk_alloc path prints $found, which is not the library that was built"
    [ -f "$("$into/bin/python" -m zk_alloc include)/zk_alloc.h" ] || fail "$wheel: python -m zk_alloc include prints a folder without zk_alloc.h"
    # shellcheck disable=SC2016 # the program's shell expands it
    kept=$(LD_PRELOAD=libm.so.6 "$into/bin/python" -m zk_alloc run sh -c 'echo "$LD_PRELOAD"')
    [ "$kept" = "$found:libm.so.6" ] || fail "$wheel: the program got LD_PRELOAD=$kept instead of $found:libm.so.6"
    changed=$(env -i PATH="$PATH" "$into/bin/python" -m zk_alloc run env | grep -vE '^(PATH|LD_PRELOAD)=' || true)
    [ -z "$changed" ] || fail "$wheel: the program got variables that were not given: $changed"
    ends 7 sh -c 'exit 7'
    ends 143 sh -c 'kill -TERM $$'
    # Python ignores SIGPIPE. A program that inherited this setting would not end at the signal.
    ends 141 sh -c 'kill -PIPE $$'
    ends 126 /dev/null
    ends 127 there-is-no-such-program
    ends 125
)

# Installs the package into a small Debian, runs a program with it and removes it. Without root or debootstrap, it only unpacks the package
# and runs a program of this machine with the library.
debian_package() (
    arch=$1
    deb=${package}_${version}_$(debian "$arch").deb
    into=$work/try/deb

    rm -rf "$into"
    mkdir -p "$work/try"
    program=(perl -e 'print length("x" x 50_000_000)')
    if pristine=$(debian_root "$arch"); then
        cp -a "$pristine" "$into"
        cp "$dist/$deb" "$into/tmp/"
        chroot "$into" dpkg --install "/tmp/$deb" >"$work/try/deb.log" 2>&1 || fail "dpkg could not install $deb: $(cat "$work/try/deb.log")"
        chroot "$into" dpkg --verify "$package" || fail "$deb: the installed files are not those of the package"
        chroot "$into" env ZK_ALLOC_REPORT=1 "LD_PRELOAD=$library" "${program[@]}" >"$into/out" 2>"$into/report"
        where="Debian $(cat "$into/etc/debian_version") with perl"
        chroot "$into" dpkg --purge "$package" >>"$work/try/deb.log" 2>&1 || fail "dpkg could not remove $deb: $(cat "$work/try/deb.log")"
        left=$(find "$into/usr" -name '*zk?alloc*')
        [ -z "$left" ] || fail "$deb leaves files when it is removed: $left"
    else
        say "not tried: installing $deb. Its files are unpacked instead"
        dpkg-deb -x "$dist/$deb" "$into"
        ZK_ALLOC_REPORT=1 LD_PRELOAD=$into/usr/lib/$arch-linux-gnu/$library "${program[@]}" >"$into/out" 2>"$into/report"
        where="unpacked, with perl"
    fi
    [ "$(cat "$into/out")" = 50000000 ] || fail "perl printed $(cat "$into/out") instead of 50000000 with the library of $deb"
    served "$deb ($where)" "$into/report"
)

# Runs programs for another architecture in qemu, with the library from its package.
emulated_package() (
    arch=$1
    deb=${package}_${version}_$(debian "$arch").deb
    into=$work/try/$arch

    qemu=$(command -v "qemu-$arch-static" || command -v "qemu-$arch") || {
        say "not tried: the packages for $arch. qemu is not installed (Debian, Ubuntu: apt-get install qemu-user-static)"
        exit
    }
    other=$(debian_root "$arch") || {
        say "not tried: the packages for $arch. They need programs of that architecture"
        exit
    }
    stage "$into"
    dpkg-deb -x "$dist/$deb" "$into"
    emulated() {
        "$qemu" -L "$other" -E ZK_ALLOC_REPORT=1 -E "LD_PRELOAD=$into/usr/lib/$arch-linux-gnu/$library" "$other/$1" "${@:2}"
    }
    emulated usr/bin/perl -e 'print length("x" x 50_000_000)' >"$into/out" 2>"$into/report"
    [ "$(cat "$into/out")" = 50000000 ] || fail "perl printed $(cat "$into/out") instead of 50000000 with the library of $deb"
    served "$deb (unpacked, with perl of Debian $(cat "$other/etc/debian_version") in qemu)" "$into/report"
    # sort closes standard error before the report, so only its output is checked.
    seq 200000 | emulated usr/bin/sort -rn >"$into/out"
    seq 200000 -1 1 | cmp - "$into/out" || fail "sort did not print its input in order with the library of $deb"
)

for arch in "$@"; do
    if [ "$arch" = "$(uname -m)" ]; then
        archive "$arch"
        wheel "$arch"
        debian_package "$arch"
    else
        emulated_package "$arch"
    fi
done
