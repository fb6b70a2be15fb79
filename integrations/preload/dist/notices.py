#!/usr/bin/env python3
"""Prints THIRD-PARTY.md: what is linked into libzk_alloc.so, and the notices that the licences require.

    notices.py TARGET TOOLS

TOOLS is the virtual environment that has zig. The crates are those that cargo names for TARGET, and those of Rust's
standard library. Fails if the notice of a crate is not found."""

import html
import os
import pathlib
import re
import subprocess
import sys

PACKAGE = "zk-alloc-preload"
# Crates in the standard library's folder that need no notice of their own: those of the Rust project itself, and those that are not linked
# here.
OF_RUST = {
    "alloc", "compiler_builtins", "core", "panic_abort", "panic_unwind", "proc_macro", "profiler_builtins",
    "rustc_std_workspace_alloc", "rustc_std_workspace_core", "rustc_std_workspace_std", "std", "std_detect", "sysroot",
    "test", "unwind",
}
UNUSED = {"getopts", "rustc_literal_escaper"}


def fail(message):
    sys.exit(f"dist: {message}; no THIRD-PARTY.md was written")


def said(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def mit_in(folder, name):
    """Returns the text of the MIT licence in a crate's folder."""
    for file in ("LICENSE-MIT", "LICENSE-MIT.md", "LICENSE-MIT.txt"):
        if (folder / file).is_file():
            return (folder / file).read_text()
    fail(f"the crate {name} has no LICENSE-MIT in {folder}")


def crates(target):
    """Returns the name, licence and notice of each crate that cargo links."""
    tree = said("cargo", "tree", "--locked", "--package", PACKAGE, "--edges=normal", "--target", target, "--prefix=none",
                "--format={p}|{l}")
    home = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
    # cargo marks crates it has already printed with (*), and prints paths for crates in this repository.
    for package, licence in sorted({tuple(line.removesuffix(" (*)").split("|")) for line in tree.split("\n") if line}):
        if "(/" in package:
            continue
        name, version = package.split()
        if "MIT" not in re.split(r" OR |/", licence):
            fail(f"the crate {name} has the licence {licence!r}, which dist/notices.py does not know")
        folder = next(home.glob(f"registry/src/*/{name}-{version.removeprefix('v')}"), None)
        if folder is None:
            fail(f"the sources of the crate {name} are not in {home}/registry/src, where cargo unpacks them")
        yield f"{name} {version.removeprefix('v')}", licence, mit_in(folder, name)


def of_standard_library(target):
    """Returns the name, licence and notice of each third-party crate in Rust's standard library."""
    sysroot = pathlib.Path(said("rustc", "--print", "sysroot").strip())
    found = {file.name[3:].split("-")[0] for file in (sysroot / "lib/rustlib" / target / "lib").glob("*.rlib")}
    pages = [(sysroot / "share/doc/rust" / page).read_text() for page in ("COPYRIGHT-library.html", "COPYRIGHT.html")]
    for name in sorted(found - OF_RUST - UNUSED):
        # The library's page lacks the crates used for backtraces. The compiler's page has them.
        sections = [section for page in pages for section in notices_of(name.replace("_", "[-_]"), page)]
        if not sections:
            fail(f"the crate {name} of Rust's standard library is on no page in {sysroot}/share/doc/rust")
        licence, texts = sections[0]
        text = next((text for file, text in texts if "MIT" in file), None)
        if text is None:
            fail(f"the page in {sysroot}/share/doc/rust has no MIT licence of the crate {name}")
        yield name.replace("_", "-"), licence, text


def notices_of(name, page):
    """Returns the licence and files of each version of a crate on a page, newest first."""
    for section in sorted(re.findall(rf"<h3>\S* {name}-[0-9].*?(?=<h3>|\Z)", page, re.DOTALL), reverse=True):
        licence = re.search(r"<b>License:</b>\s*(.*?)\s*</p>", section, re.DOTALL)
        files = re.findall(r"<summary><code>(.*?)</code></summary>\s*<pre>\n?(.*?)</pre>", section, re.DOTALL)
        yield html.unescape(licence[1]), [(file, html.unescape(text)) for file, text in files]


def head_of(source):
    """Returns the comment at the beginning of a C file, without its delimiters."""
    comment = re.match(r"/\*(.*?)\*/", source.read_text(), re.DOTALL)
    if comment is None:
        fail(f"{source} does not begin with its licence")
    return re.sub(r"^ +", "", comment[1].strip(), flags=re.MULTILINE)


def main(target, tools):
    zig = next(pathlib.Path(tools).glob("lib/python3*/site-packages/ziglang"), None)
    if zig is None:
        fail(f"{tools} has no zig")
    rust = said("rustc", "--version").split()[1]
    sysroot = pathlib.Path(said("rustc", "--print", "sysroot").strip())
    parts = [*crates(target)]
    parts.append((f"Rust's standard library {rust}", "MIT OR Apache-2.0",
                  "Copyright (c) The Rust Project Developers (see https://thanks.rust-lang.org)\n\n"
                  + (sysroot / "share/doc/rust/licenses/MIT.txt").read_text()))
    parts += [(f"{name} (in Rust's standard library)", *rest) for name, *rest in of_standard_library(target)]
    parts.append(("LLVM's libunwind, and parts of LLVM's compiler-rt in compiler_builtins", "Apache-2.0 WITH LLVM-exception",
                  (zig / "lib/libunwind/LICENSE.TXT").read_text()))
    parts.append(("zig's compiler_rt", "MIT", (zig / "LICENSE").read_text()))
    parts.append(("the stat functions of the GNU C Library that are linked into programs", "LGPL-2.1-or-later, with a permission to link",
                  head_of(zig / "lib/libc/glibc/io/fstat64-2.32.c")))
    print("# Third-party software in libzk_alloc.so\n")
    print("`integrations/preload/dist/notices.py` of zk-alloc writes this file. The library has these parts of other authors linked into it.")
    print("Where a licence offers a choice, the library takes MIT.\n")
    print("| part | licence |\n|---|---|")
    for name, licence, _ in parts:
        print(f"| {name} | {licence} |")
    for name, _, text in parts:
        print(f"\n## {name}\n\n```text\n{text.strip()}\n```")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
