#!/usr/bin/env bash
# Prints the libraries that a build of the library depends on, and fails if one of them is not allowed: needs.sh LIBRARY
source "$(dirname "$0")/common.sh"
file=$1
needed=$(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || fail "readelf shows no library that $file needs, so they cannot be checked"
# In glibc 2.34 and later, libc.so.6 contains libpthread and libdl.
other=$(grep -vxE 'libc\.so\.6|libpthread\.so\.0|libdl\.so\.2' <<<"$needed" || true)
[ -z "$other" ] || fail "$file needs ${other//$'\n'/ }, but may need glibc's libc, libpthread and libdl only"
echo "${needed//$'\n'/ }"
