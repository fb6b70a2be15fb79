#!/usr/bin/env bash
# Builds libzk_alloc.so for other machines, packs it as .tar.gz, .deb and wheel into target/dist, and tries the packages here.
# docs/preload.md says how to install them. Needs rustup, python3 with venv, readelf, GNU tar and dpkg-deb.
#   run.sh [--untried]
source "$(dirname "$0")/common.sh"
here=$preload/dist

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
    say "the sources have changes without a commit: the packages are not those of a commit"
fi

"$here/tools.sh"
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
    "$here/build.sh" "$arch"
    python3 "$here/notices.py" "$arch-unknown-linux-gnu" "$work/tools" >"$work/$arch/THIRD-PARTY.md"
done
for arch in "${built[@]}"; do
    # One package of Debian has the same documents for every architecture.
    cmp -s "$work/${built[0]}/THIRD-PARTY.md" "$work/$arch/THIRD-PARTY.md" ||
        fail "THIRD-PARTY.md of $arch and ${built[0]} in $work differ: other crates are linked; no package was made"
    "$here/pack.sh" "$arch"
    python3 "$preload/python/wheel.py" "$version" "$arch" "$work/$arch" "$dist" "$maintainer" "$homepage"
done
(cd "$dist" && sha256sum -- *.tar.gz *.deb *.whl >SHA256SUMS)

[ "${1-}" = --untried ] || "$here/try.sh" "${built[@]}"
say "made in $dist:"
cat "$dist/SHA256SUMS"
if [ "${#missing[@]}" != 0 ]; then
    fail "rustup could not add Rust's standard library for: ${missing[*]}; only the packages for ${built[*]} were made"
fi
