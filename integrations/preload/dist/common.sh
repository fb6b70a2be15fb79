# shellcheck shell=bash disable=SC2034 # the scripts of this folder source this file and use its variables
# Names, versions, folders and functions that the scripts share.
set -euo pipefail
umask 022
export LC_ALL=C TZ=UTC

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd -P)
preload=$root/integrations/preload
dist=${CARGO_TARGET_DIR:-$root/target}/dist
dist=$(mkdir -p "$dist" && cd "$dist" && pwd -P)
# The folder for everything but the packages themselves: tools, builds, unpacked packages, and root file systems for tests.
work=$dist/work

package=zk-alloc-preload
library=libzk_alloc.so
architectures=(x86_64 aarch64)
# The oldest glibc that the packages must support.
glibc=2.28
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
# Only the same compiler makes identical packages from a commit, so this is CI's compiler.
rust=$(sed -n 's/^version=//p' "$root/.ci/toolchain")
export RUSTUP_TOOLCHAIN=$rust

fail() {
    echo "dist: $*" >&2
    exit 1
}

# Files in packages get the time of the last commit.
if [ -z "${SOURCE_DATE_EPOCH-}" ]; then
    SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct) ||
        fail "git cannot tell the time of the last commit, which the files in packages get; set SOURCE_DATE_EPOCH. Nothing was built"
fi
export SOURCE_DATE_EPOCH

# The contact address for users of a package, and the project's home page. The sources contain no address, so this is the last commit's
# author.
maintainer=${ZK_DIST_MAINTAINER:-$(git -C "$root" log -1 --format='The zk-alloc developers <%ae>')}
homepage=${ZK_DIST_HOMEPAGE:-${GITHUB_REPOSITORY:+${GITHUB_SERVER_URL:-https://github.com}/$GITHUB_REPOSITORY}}

say() {
    echo "dist: $*"
}

# Succeeds if the sources have uncommitted changes.
changed() {
    [ -n "$(git -C "$root" status --porcelain 2>/dev/null)" ]
}

# Prints Debian's name for an architecture.
debian() {
    case $1 in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) fail "no name in Debian is known for the architecture $1" ;;
    esac
}

# Creates an empty folder for a package's files: stage FOLDER
stage() {
    rm -rf "$1"
    mkdir -p "$1"
}

# Sets the permissions and timestamps of all files in a folder to their values in a package: settle FOLDER
settle() {
    find "$1" -type d -exec chmod 755 {} +
    find "$1" -type f -exec chmod 644 {} +
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# Fails unless the report in a file shows that the library was in use: served WHAT FILE
served() {
    grep -Eq '^zk-alloc: report of .*: served [1-9][0-9]* requests' "$2" || fail "$1: the library was not in use: $(cat "$2")"
    say "tried: $1: $(sed -n 's/^zk-alloc: report of .*: \(served [0-9]* requests\).*/\1/p;' "$2" | head -n 1)"
}
