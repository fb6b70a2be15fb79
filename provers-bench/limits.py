#!/usr/bin/env python3
"""Runs each allocator under memory limits: proofs of Poseidon2 in a control group, or under RLIMIT_DATA or RLIMIT_AS.

usage: provers-bench/limits.py [--log-rows N] [--rounds N] [--allocators NAME,...]

Prints a Markdown table: the median time of a warm proof, or the reason if there is none. The limits are multiples of glibc's peak RSS
without a limit. Without permission to create a control group below the current one, that part is skipped.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ARMS = "glibc,jemalloc,jemalloc-tuned,mimalloc,mimalloc-tuned,tcmalloc,snmalloc,zk-alloc"
# The driver also runs in the control group, so the group's limit includes this much for it.
DRIVER_BYTES = 12 << 20
GROUP = [2.0, 1.3, 1.1, 1.0, 0.9]
DATA = [2.0, 1.3, 1.1]


def driver():
    """Returns the path of the driver that cargo builds."""
    metadata = subprocess.check_output(["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT)
    return Path(json.loads(metadata)["target_directory"]) / "provers/plonky3/release/bench-plonky3"


def run(program, arm, options, enter=None):
    """Runs a single arm. Returns the result written by prove-bench, or None if the driver itself was killed."""
    with tempfile.TemporaryDirectory() as out:
        command = [program, "plonky3", "--workloads", "poseidon2", "--log-rows", str(options.log_rows), "--allocators", arm]
        command += ["--rounds", str(options.rounds), "--processes", "1", "--json", "--out", out]
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=enter)
    try:
        return json.loads(ended.stdout)["workloads"][0]["arms"][0]
    except (ValueError, KeyError, IndexError):
        return None


def cell(arm):
    """Formats a cell of the table."""
    if arm is None:
        return "the driver was killed, too"
    if arm["outcome"]["outcome"] == "finished":
        summary = arm["summary"]
        return f"{summary['warm_wall_ns'] / 1e9:.2f} s, {summary['peak_rss_bytes'] / 1e6:.0f} MB"
    reason = arm["outcome"].get("reason", "did not run")
    if f"signal: {signal.SIGKILL.value}" in reason or "SIGKILL" in reason:
        return "killed"
    if "memory allocation of" in reason or "SIGABRT" in reason:
        return "out of memory"
    return reason.splitlines()[0][:60]


class Group:
    """A control group with a memory limit. It is removed at the end."""

    def __init__(self, limit_bytes):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        v1 = [line.split(":memory:")[1] for line in lines if ":memory:" in line]
        v2 = [line[3:] for line in lines if line.startswith("0::")]
        root, own, name = ("/sys/fs/cgroup/memory", v1[0], "memory.limit_in_bytes") if v1 else ("/sys/fs/cgroup", v2[0], "memory.max")
        self.path = Path(f"{root}{own.rstrip('/')}/zk-alloc-limits-{os.getpid()}")
        self.path.mkdir()
        try:
            if not (self.path / name).exists():
                raise OSError(f"{self.path} has no memory controller")
            (self.path / name).write_text(str(limit_bytes))
        except OSError:
            self.path.rmdir()
            raise

    def __enter__(self):
        return lambda: (self.path / "cgroup.procs").write_text("0")

    def __exit__(self, *_):
        self.path.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log-rows", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--allocators", default=ARMS)
    options = parser.parse_args()
    arms = options.allocators.split(",")

    # Builds the driver and every arm.
    build = ["cargo", "prove-bench", "plonky3", "--workloads", "poseidon2", "--log-rows", "10", "--allocators", ",".join(arms)]
    subprocess.run(build + ["--rounds", "1", "--processes", "1"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    program = driver()
    free = {arm: run(program, arm, options) for arm in dict.fromkeys(["glibc", *arms])}
    peak = free["glibc"]["summary"]["peak_rss_bytes"]
    print(f"Poseidon2 2^{options.log_rows}: glibc's peak RSS without a limit is {peak / 1e6:.0f} MB.\n", flush=True)

    columns = [("no limit", None, None)]
    columns += [(f"control group {part:.1f}", "group", part) for part in GROUP]
    columns += [(f"RLIMIT_DATA {part:.1f}", resource.RLIMIT_DATA, part) for part in DATA]
    columns += [(f"RLIMIT_AS {part:.1f}", resource.RLIMIT_AS, part) for part in DATA]
    try:
        with Group(peak):
            pass
    except OSError as error:
        print(f"cannot make a control group, so that part is left out: {error}", file=sys.stderr)
        columns = [column for column in columns if column[1] != "group"]
    print("| | " + " | ".join(name for name, *_ in columns) + " |\n|---|" + "--:|" * len(columns), flush=True)
    for arm in arms:
        print(f"| {arm} | {cell(free[arm])}", end="", flush=True)
        for _, kind, part in columns[1:]:
            limit = int(peak * part)
            if kind == "group":
                with Group(limit + DRIVER_BYTES) as enter:
                    ended = run(program, arm, options, enter)
            else:
                ended = run(program, arm, options, lambda: resource.setrlimit(kind, (limit, limit)))
            print(f" | {cell(ended)}", end="", flush=True)
        print(" |", flush=True)


if __name__ == "__main__":
    main()
