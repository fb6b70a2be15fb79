#!/usr/bin/env python3
"""Measures the resident MiB of three services after 15 idle seconds, as the kernel counts them: under glibc, jemalloc, and
libzk_alloc.so without and with its background thread. Prints one line for each service and allocator, with the sorted figures of all runs.

Usage: run.py LIBZK_ALLOC_SO [RUNS]; needs node, redis-server and redis-benchmark, and Debian's libjemalloc2. Debian's redis-server is
linked with libjemalloc, so its glibc results are also jemalloc's."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
IDLE_SECONDS = 15


CLEAN = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("ZK_ALLOC_")}


def start(command, environment):
    child = subprocess.Popen(command, env=CLEAN | environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "idle\n", command
    return child


def start_redis(environment):
    """Redis with half a million keys, after a list of half a million entries was filled and deleted."""
    socket = tempfile.mktemp(prefix="zk-alloc-redis-")
    server = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", tempfile.gettempdir()]
    child = subprocess.Popen(server, env=CLEAN | environment, stdout=subprocess.DEVNULL)
    for _ in range(100):
        if Path(socket).exists():
            break
        time.sleep(0.1)
    load = ["redis-benchmark", "-s", socket, "-t", "set,lpush", "-n", "500000", "-r", "500000", "-d", "100", "-P", "16", "-q"]
    subprocess.run(load, env=CLEAN, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["redis-cli", "-s", socket, "del", "mylist"], env=CLEAN, stdout=subprocess.DEVNULL, check=True)
    return child


def resident_mib(child):
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def main():
    library, runs = os.path.realpath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    arms = {
        "glibc": {},
        "jemalloc": {"LD_PRELOAD": JEMALLOC},
        "zk-alloc": {"LD_PRELOAD": library},
        "zk-alloc, ZK_ALLOC_BACKGROUND=1": {"LD_PRELOAD": library, "ZK_ALLOC_BACKGROUND": "1"},
    }
    programs = {"node": ["node", "--expose-gc", HERE / "service.js"], "python": [sys.executable, HERE / "service.py"]}
    services = {"redis": start_redis}
    for name, command in programs.items():
        services[f"{name}, no check"] = lambda environment, command=command: start([*command, "0"], environment)
        services[f"{name}, a check each second"] = lambda environment, command=command: start([*command, "1"], environment)
    for name, begin in services.items():
        figures = {arm: [] for arm in arms}
        for _ in range(runs):
            children = {arm: begin(environment) for arm, environment in arms.items()}
            time.sleep(IDLE_SECONDS)
            for arm, child in children.items():
                figures[arm].append(resident_mib(child))
                child.kill()
                child.wait()
        for arm, mib in figures.items():
            print(f"{name}: {arm}: {' '.join(map(str, sorted(mib)))}", flush=True)


main()
