#!/usr/bin/env bash
# Tries the packages with the programs that this machine can run, and says which it could not try: try ARCHITECTURE...
source "$(dirname "$0")/common.sh"
here=$preload/dist

for arch in "$@"; do
    if [ "$arch" = "$(uname -m)" ]; then
        "$here/try-archive" "$arch"
        "$here/try-wheel" "$arch"
        "$here/try-deb" "$arch"
    else
        "$here/try-emulated" "$arch"
    fi
done
