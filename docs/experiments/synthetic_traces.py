"""Writes three made-up traces into the current folder, for `prove-bench replay` (docs/experiments/placement.md).

A trace is a line of JSON and records of 32 bytes, as provers-bench/src/protocol/records.rs reads them. All of these have one
thread and one proof, which never ends; a block's address is its number.
"""

import json
import math
import random
import struct

ALLOC, FREE = 1, 3
THREAD = 1
ALIGN_LOG2 = 3
PROOF_1_IN_PHASE = 1 << 1 | 1

random_numbers = random.Random(1)


def write(path, title, operations):
    with open(path, "wb") as file:
        header = dict(version=1, title=title, min_bytes=64, lost=0)
        file.write((json.dumps(header) + "\n").encode())
        for operation, size, address in operations:
            tags = operation | ALIGN_LOG2 << 8 | THREAD << 16 | PROOF_1_IN_PHASE << 32
            file.write(struct.pack("<QQQQ", tags, size, address, 0))


def random_lifetimes(most_bytes):
    """Blocks of 1 to 32 KiB, each size as likely as its double; beyond `most_bytes` alive, any of them is freed."""
    operations, live, total = [], [], 0
    for address in range(1, 400_001):
        size = int(math.exp(random_numbers.uniform(math.log(1024), math.log(32768))))
        operations.append((ALLOC, size, address))
        live.append((address, size))
        total += size
        while total > most_bytes:
            index = random_numbers.randrange(len(live))
            live[index], live[-1] = live[-1], live[index]
            freed, freed_size = live.pop()
            total -= freed_size
            operations.append((FREE, freed_size, freed))
    return operations


def bursts(count, length):
    """Bursts of blocks of 1 to 2 KiB, one of each of which stays."""
    operations, address = [], 0
    for _ in range(count):
        burst = []
        for _ in range(length):
            address += 1
            size = random_numbers.randrange(1024, 2048)
            operations.append((ALLOC, size, address))
            burst.append((address, size))
        keep = random_numbers.randrange(length)
        operations += [(FREE, size, freed) for index, (freed, size) in enumerate(burst) if index != keep]
    return operations


def survivors(rounds, most_bytes):
    """Fills `most_bytes` with blocks of 1 to 4 KiB, and frees all but a tenth of them, which stay where they are."""
    operations, address, live = [], 0, []
    for _ in range(rounds):
        total = sum(size for _, size in live)
        while total < most_bytes:
            address += 1
            size = random_numbers.randrange(1024, 4096)
            operations.append((ALLOC, size, address))
            live.append((address, size))
            total += size
        random_numbers.shuffle(live)
        kept = len(live) // 10
        operations += [(FREE, size, freed) for freed, size in live[kept:]]
        live = live[:kept]
    return operations


MIB = 1 << 20
write("syn-random.trace", "random lifetimes 1-32K, 64 MiB alive", random_lifetimes(64 * MIB))
write("syn-tail.trace", "bursts of 400 blocks of 1-2K, one of each stays", bursts(500, 400))
write("syn-survivors.trace", "fill 64 MiB of 1-4K, keep a tenth, six times", survivors(6, 64 * MIB))
