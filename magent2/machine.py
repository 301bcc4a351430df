"""Checks of the operating system, and the limit of open files."""

from __future__ import annotations

import logging
import sys

from magent2.errors import SettingsError

log = logging.getLogger(__name__)

OPEN_FILES_MAX = 1 << 20  # more than one process needs; some systems allow a billion
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
