"""A program that prints its environment, or exits in a requested way."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from pathlib import Path


def show() -> None:
    found = {
        "arguments": sys.argv[1:],
        "variables": dict(os.environ),
        "folder": str(Path.cwd()),
        "stdin": sys.stdin.read(),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "files": [number for number in range(64) if _is_open(number)],
        "warm": "agents" in sys.modules,
    }
    print(json.dumps(found))
    print("shown", file=sys.stderr)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def leave() -> None:
    atexit.register(print, "goodbye")
    threading.Thread(target=outlive).start()
    sys.exit(7)


def outlive() -> None:
    threading.main_thread().join()
    print("threads have ended")


def fail() -> None:
    raise RuntimeError("raised")


def complain() -> None:
    sys.exit("complained")


def wait() -> None:
    print("waiting", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"show": show, "exit": leave, "raise": fail, "complain": complain, "wait": wait}[sys.argv[1]]()
