"""The commands: python -m zk_alloc run|path|include."""

import os
import shutil
import signal
import sys

import zk_alloc

USAGE = """usage: python -m zk_alloc run PROGRAM [ARGUMENT...]
       python -m zk_alloc path
       python -m zk_alloc include

run      runs a program with libzk_alloc.so, by LD_PRELOAD. The program replaces this process:
         signals reach it, and its exit code is the command's. Libraries that LD_PRELOAD already names
         stay, after this one
path     prints the path of libzk_alloc.so, for LD_PRELOAD
include  prints the folder of zk_alloc.h, for a C compiler's -I

With ZK_ALLOC_REPORT=1, each process prints at exit what the library served.

exit codes: the program's; 125 this command failed; 126 the program cannot be run; 127 there is no such program"""

FAILED, NOT_RUNNABLE, NOT_FOUND = 125, 126, 127


def fail(code, message):
    print(f"zk_alloc: {message}", file=sys.stderr)
    sys.exit(code)


def preloaded(library, others):
    """Returns the new LD_PRELOAD: this library, then the previous value. The loader separates names by spaces and colons."""
    kept = [name for name in others.replace(":", " ").split() if name != library]
    return ":".join([library, *kept])


def environment(library):
    """Returns the program's environment: this process's environment, plus LD_PRELOAD."""
    variables = dict(os.environ)
    variables["LD_PRELOAD"] = preloaded(library, variables.get("LD_PRELOAD", ""))
    # In the C locale, Python sets LC_CTYPE in its own environment. The program must not inherit this.
    try:
        with open("/proc/self/environ", "rb") as started_with:
            if not any(line.startswith(b"LC_CTYPE=") for line in started_with.read().split(b"\0")):
                variables.pop("LC_CTYPE", None)
    except OSError:
        pass
    return variables


def run(command):
    library = zk_alloc.library()
    if not os.path.isfile(library):
        fail(FAILED, f"there is no {library}; install the wheel, which `cargo make dist` makes. {command[0]} was not started")
    if any(letter in library for letter in " :\t\n"):
        fail(FAILED, f"the loader splits LD_PRELOAD at spaces and colons, and the library's path has one: {library}. "
                     f"Install the wheel into a folder without such characters in its path. {command[0]} was not started")
    # Python ignores these signals, and the program would inherit this.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment(library))
    except FileNotFoundError:
        found = shutil.which(command[0])
        if found is None:
            fail(NOT_FOUND, f"there is no program {command[0]}" + ("" if "/" in command[0] else " in PATH"))
        fail(NOT_RUNNABLE, f"{found} cannot be run: its interpreter (the #! line) or loader does not exist")
    except NotADirectoryError:
        fail(NOT_FOUND, f"there is no program {command[0]}: a part of its path is not a folder")
    except OSError as error:
        fail(NOT_RUNNABLE, f"{command[0]} cannot be run: {error.strerror}")


def main(arguments):
    command, *rest = arguments or [""]
    if command in ("-h", "--help", "help") or (command == "run" and rest[:1] in (["-h"], ["--help"])):
        print(USAGE)
    elif command == "run":
        program = rest[1:] if rest[:1] == ["--"] else rest
        if not program or not program[0]:
            fail(FAILED, "run needs a program: python -m zk_alloc run PROGRAM [ARGUMENT...]")
        if program[0].startswith("-") and program is rest:
            fail(FAILED, f"run has no option {program[0]}; a program of this name goes after --")
        run(program)
    elif command in ("path", "include") and not rest:
        print(zk_alloc.library() if command == "path" else zk_alloc.include())
    elif command in ("path", "include"):
        fail(FAILED, f"{command} takes no arguments, and {rest[0]} was given")
    elif command:
        fail(FAILED, f"there is no command {command}; the commands are run, path and include (--help)")
    else:
        fail(FAILED, "a command is needed: run, path or include (--help)")


if __name__ == "__main__":
    main(sys.argv[1:])
