#!/usr/bin/env bash
# Checks that a library will run where its packages say: check.sh ARCHITECTURE LIBRARY
source "$(dirname "$0")/common.sh"
arch=$1
file=$2
cargo_home=${CARGO_HOME:-$HOME/.cargo}

case $arch in
    x86_64) machine='Advanced Micro Devices X86-64' ;;
    aarch64) machine=AArch64 ;;
    *) fail "no machine is known for the architecture $arch" ;;
esac
readelf --file-header "$file" | grep -q "Machine: *$machine" || fail "$file is not for $arch; no package was made"

needed=$("$preload/dist/needs.sh" "$file") || fail "no package was made"

versions=$(readelf --version-info --wide "$file" | sed -n 's/.*Name: \([^ ]*\) .*/\1/p' | sort -Vu)
[ -n "$versions" ] || fail "readelf shows no versions that $file needs, so they cannot be checked; no package was made"
while read -r needs; do
    newest=$(printf '%s\n' "$needs" "GLIBC_$glibc" | sort -V | tail -n 1)
    [[ $needs == GLIBC_[0-9]* && $newest == "GLIBC_$glibc" ]] ||
        fail "$file needs $needs, but must run with glibc $glibc: readelf --dyn-syms shows the symbol; no package was made"
done <<<"$versions"

exported=$(readelf --dyn-syms --wide "$file" | awk '$7 != "UND" && ($5 == "GLOBAL" || $5 == "WEAK") { print $8 }')
grep -qx malloc <<<"$exported" || fail "$file does not export malloc; no package was made"
# Others would find such a function here instead of in their own libgcc_s.so.1.
inner=$(grep -E '^(_Unwind_|__register_frame|__deregister_frame|__gcc_|__unw_|__(u?div|u?mod|mul)[a-z]i)' <<<"$exported" || true)
[ -z "$inner" ] || fail "$file exports functions of its compiler: ${inner//$'\n'/ }; no package was made"

for path in "$root" "$cargo_home"; do
    if grep -qaF "$path/" "$file"; then
        fail "$file contains the path $path of this machine, and would differ on another; no package was made"
    fi
done
say "$arch needs $needed, at most $(tail -n 1 <<<"$versions"), and exports $(wc -l <<<"$exported") symbols"
