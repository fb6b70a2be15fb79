#!/usr/bin/env python3
"""Makes a virtual machine behave like another kind of host, and runs a command there. Needs root.

    hosts.py [keeps] [thp=always|madvise|never] COMMAND...   runs COMMAND, then undoes the changes, unless an earlier `hosts.py` made some
    hosts.py [keeps] [thp=always|madvise|never]              prepares the host for several such commands, until `hosts.py off`
    hosts.py check                                           measures the first touch of memory on the host as it is now
    hosts.py off                                             undoes all changes

keeps: the guest keeps its free memory, as bare metal does, instead of reporting it to the hypervisor. Four fifths of the free memory are
touched once, so that the hypervisor backs them, and one page of each 4 MiB stays locked, so that no free block is large enough to be
reported. This takes a minute. COMMAND does not see /sys/module/page_reporting, as on bare metal.

Exit code: COMMAND's; 1 if the host could not be changed as requested; 2 for wrong usage."""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path("/run/zk-alloc-hosts")
REPORTING = Path("/sys/module/page_reporting")
SETTINGS = {
    "order": REPORTING / "parameters/page_reporting_order",
    "thp": Path("/sys/kernel/mm/transparent_hugepage/enabled"),
    "unevictable": Path("/proc/sys/vm/compact_unevictable_allowed"),
}
THP = ["thp=always", "thp=madvise", "thp=never"]
PAGE, HUGE = 4 << 10, 2 << 20
# The guest reports free blocks of this order (4 MiB) and above.
ORDER = 10
# Where the hypervisor already backs free memory, a first touch takes at most this fraction of the time with huge pages as with small pages.
HUGE_PART = 0.75


def set_to(name, value):
    """Changes a kernel setting and saves its previous value."""
    STATE.mkdir(exist_ok=True)
    before = STATE / name
    if not before.exists():
        text = SETTINGS[name].read_text()
        before.write_text(text.partition("[")[2].partition("]")[0] or text)
    SETTINGS[name].write_text(value)


def first_touch(length, advice):
    """Maps memory and touches each page. Returns the memory and the time per page in microseconds."""
    memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    ones = b"\1" * (length // PAGE)
    began = time.monotonic()
    memory[0:length:PAGE] = ones
    return memory, (time.monotonic() - began) * 1e6 / (length // PAGE)


def first_touches(advice):
    """Measures the first touch three times, in microseconds per 4 KiB. Before each, memory stays free long enough to be reported."""
    costs = []
    for _ in range(3):
        time.sleep(4)
        memory, cost = first_touch(512 << 20, advice)
        memory.close()
        costs.append(cost)
    return costs


def keep(length):
    """Makes the hypervisor back memory, then frees all of it except the locked pages. Waits until it is killed."""
    memory, _ = first_touch(length, mmap.MADV_HUGEPAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    seen = set()
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start in range(0, length, HUGE):
            pagemap.seek((base + start) // PAGE * 8)
            entries = memoryview(pagemap.read(min(HUGE, length - start) // PAGE * 8)).cast("Q")
            freed = start
            for index, entry in enumerate(entries):
                block = (entry & ((1 << 55) - 1)) >> ORDER
                if block not in seen:
                    seen.add(block)
                    at = start + index * PAGE
                    if libc.mlock(base + at, PAGE) != 0:
                        sys.exit(f"can't lock a page: {os.strerror(ctypes.get_errno())}")
                    if at > freed:
                        memory.madvise(mmap.MADV_DONTNEED, freed, at - freed)
                    freed = at + PAGE
            end = start + len(entries) * PAGE
            if end > freed:
                memory.madvise(mmap.MADV_DONTNEED, freed, end - freed)
    (STATE / "kept").write_text(f"{len(seen)} blocks")
    signal.pause()


def keeper():
    """Returns the process that holds the locked pages, or None."""
    try:
        pid = int((STATE / "pid").read_text())
        return pid if "hosts.py" in Path(f"/proc/{pid}/cmdline").read_text() else None
    except (OSError, ValueError):
        return None


def begin_to_keep():
    if not REPORTING.exists():
        print("this machine does not report its free memory, so `keeps` changes nothing", file=sys.stderr)
        return
    if keeper() is None:
        STATE.mkdir(exist_ok=True)
        set_to("order", str(ORDER))
        set_to("unevictable", "0")
        kibibytes = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
        length = int(kibibytes * 1024 * 0.8) // HUGE * HUGE
        (STATE / "kept").unlink(missing_ok=True)
        print(f"touching {length >> 30} GiB, which takes a minute", file=sys.stderr)
        # The process outlives this one, so it must not keep a pipe open that a reader waits on.
        with open(STATE / "output", "w+") as output:
            keep_memory = [__file__, "keep", str(length)]
            process = subprocess.Popen(keep_memory, start_new_session=True, stdout=output, stderr=output)
            (STATE / "pid").write_text(str(process.pid))
            while not (STATE / "kept").exists():
                if process.poll() is not None:
                    output.seek(0)
                    sys.exit(f"the memory could not be touched and locked: {output.read().strip()}")
                time.sleep(0.2)
        Path("/proc/sys/vm/drop_caches").write_text("2")
        small, huge = check()
        if huge > small * HUGE_PART:
            sys.exit("first touches of huge pages are still expensive: this host does not behave as if it kept its memory")


def check():
    """Prints the cost of first touches. Returns the medians for small and huge pages."""
    middle = []
    for name, advice in [("small", mmap.MADV_NOHUGEPAGE), ("huge", mmap.MADV_HUGEPAGE)]:
        costs = first_touches(advice)
        middle.append(sorted(costs)[1])
        said = ", ".join(f"{cost:.2f}" for cost in costs)
        print(f"first touch in {name} pages after 4 s: {said} us for each 4 KiB", file=sys.stderr)
    return middle


def off():
    pid = keeper()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    for name, path in SETTINGS.items():
        before = STATE / name
        if before.exists():
            path.write_text(before.read_text())
    for file in STATE.glob("*"):
        file.unlink()


def run(command, is_kept):
    """Runs a command. Returns its exit code."""
    if is_kept and REPORTING.exists():
        hide = f'mount --make-rprivate / && mount -t tmpfs none {REPORTING} && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", hide, "sh", *command]
    process = subprocess.Popen(command)
    # Ctrl-C also reaches the command, which handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = process.wait()
    return code if code >= 0 else 128 - code


def is_change(word):
    """Returns whether a word of the command line selects a kind of host."""
    return word in ("keeps", "reports") or word.startswith("thp=")


def main(words):
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    if os.geteuid() != 0:
        sys.exit("hosts.py changes settings of the kernel: run it as root")
    if words == ["check"]:
        check()
        return 0
    if words == ["off"]:
        return off()
    if words[0] == "keep":
        return keep(int(words[1]))
    for word in words:
        if word.startswith("thp=") and word not in THP:
            print(f"{word}: one of {', '.join(THP)}", file=sys.stderr)
            return 2
    was_changed, is_kept, stays = STATE.exists() and any(STATE.iterdir()), False, all(map(is_change, words))
    try:
        while words and is_change(words[0]):
            word = words.pop(0)
            if word == "keeps":
                begin_to_keep()
                is_kept = True
            elif word.startswith("thp="):
                set_to("thp", word.removeprefix("thp="))
        code = run(words, is_kept) if words else 0
        if stays and is_kept and REPORTING.exists():
            print("programs still find that this kernel reports free memory; start them by `hosts.py keeps COMMAND`", file=sys.stderr)
    except BaseException:
        off()
        raise
    if not (stays or was_changed):
        off()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
