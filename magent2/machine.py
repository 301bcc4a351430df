"""Checks of the operating system, the limit of open files, and freed memory."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from functools import cache

from magent2.errors import SettingsError

log = logging.getLogger(__name__)

OPEN_FILES_MAX = 1 << 20  # more than one process needs; some systems allow a billion
RELEASE_MIN_BYTES = 16 << 20  # less freed memory is not worth the time of a release
OPEN_FILES_FEW = 10_240  # the limit that macOS grants although it reports none


def check_system(system: str = sys.platform) -> None:
    """Refuse Windows, whose event loop lacks what servers need; WSL works."""
    if system.startswith(("win", "cygwin")):
        raise SettingsError(
            "magent2 runs on Linux and macOS; on Windows use WSL: run 'wsl --install', then install and start it there"
        )


def raise_open_files() -> int:
    """Raise the limit of open files as far as the system allows and return it. Each connection is an open file."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    for wanted in (most, min(most, OPEN_FILES_FEW)):
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:  # macOS reports no limit but has one
            log.info("the limit of open files stays as it is", extra={"wanted": wanted, "error": str(error)})
            continue
        soft = wanted
    log.info("open files", extra={"limit": soft, "hard_limit": hard})
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft


def release_memory(freed_bytes: int) -> None:
    """Give freed memory back to the system, if it is much.

    The allocator of glibc keeps it otherwise: an idle worker kept 467 of 520 MB, and 88 MB with this.
    """
    if freed_bytes >= RELEASE_MIN_BYTES and (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function of the C library that does it; `None` for a library without one."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim if callable(trim) else None
