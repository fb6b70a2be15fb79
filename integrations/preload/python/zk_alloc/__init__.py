"""libzk_alloc.so: a memory allocator for existing programs, loaded by LD_PRELOAD.

`python -m zk_alloc run PROGRAM` runs a program with it."""

import os

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def library():
    """Returns the path of libzk_alloc.so, for LD_PRELOAD."""
    return os.path.join(_FOLDER, "lib", "libzk_alloc.so")


def include():
    """Returns the folder of zk_alloc.h, for a C compiler's -I."""
    return os.path.join(_FOLDER, "include")
