#!/usr/bin/env python3
"""Writes the wheel: the same bytes for the same input.

    wheel.py VERSION ARCHITECTURE BUILT INTO MAINTAINER HOMEPAGE

HOMEPAGE may be empty. BUILT is the folder with libzk_alloc.so and THIRD-PARTY.md. SOURCE_DATE_EPOCH is the time of the files."""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
# The oldest glibc for which pip installs the wheel, in pip's notation (PEP 600).
PLATFORM = "manylinux_2_28"

METADATA = """\
Metadata-Version: 2.4
Name: zk_alloc
Version: {version}
Summary: Memory allocator for zero-knowledge provers, as a library for LD_PRELOAD
Maintainer-email: {maintainer}
{home}License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
License-File: THIRD-PARTY.md
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Classifier: Private :: Do Not Upload
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: zk-alloc
Root-Is-Purelib: false
Tag: {tag}
"""


def contents(version, tag, built, maintainer, homepage):
    """Returns the files of the wheel, by name."""
    info = f"zk_alloc-{version}.dist-info"
    files = {f"zk_alloc/{file.name}": file.read_bytes() for file in sorted((HERE / "zk_alloc").glob("*.py"))}
    files["zk_alloc/lib/libzk_alloc.so"] = (built / "libzk_alloc.so").read_bytes()
    files["zk_alloc/include/zk_alloc.h"] = (HERE.parent / "include/zk_alloc.h").read_bytes()
    readme = (HERE.parent / "dist/README.md").read_text(encoding="utf-8")
    home = f"Project-URL: Homepage, {homepage}\n" if homepage else ""
    files[f"{info}/METADATA"] = METADATA.format(version=version, maintainer=maintainer, home=home, readme=readme).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    for licence in (ROOT / "LICENSE-APACHE", ROOT / "LICENSE-MIT", built / "THIRD-PARTY.md"):
        files[f"{info}/licenses/{licence.name}"] = licence.read_bytes()
    # RECORD lists every file with its hash and length, and itself without them.
    record = f"{info}/RECORD"
    files[record] = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items()).encode()
    files[record] += f"{record},,\n".encode()
    return files


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def main(version, arch, built, into, maintainer, homepage):
    tag = f"py3-none-{PLATFORM}_{arch}"
    when = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    path = pathlib.Path(into) / f"zk_alloc-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in contents(version, tag, pathlib.Path(built), maintainer, homepage).items():
            entry = zipfile.ZipInfo(name, when)
            entry.create_system = 3  # Unix: the permissions below are Unix permissions
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            # Stored uncompressed, because zlib's output depends on its version.
            wheel.writestr(entry, data, zipfile.ZIP_STORED)


if __name__ == "__main__":
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    main(*sys.argv[1:])
