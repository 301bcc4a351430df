"""What the machine gives a process: whether it is one that we run on, and how many files may be open."""

from __future__ import annotations

import logging
import sys

from magent2.errors import SettingsError

log = logging.getLogger(__name__)

OPEN_FILES_MAX = 1 << 20  # more than any process of ours can use; some systems offer a billion
OPEN_FILES_FEW = 10_240  # what macOS grants when it promises to grant anything


def check_system(system: str = sys.platform) -> None:
    """Servers need what Unix has; on Windows the Linux inside it does."""
    if system.startswith(("win", "cygwin")):
        raise SettingsError(
            "magent2 runs on Linux and macOS; on Windows use WSL: run 'wsl --install', then install and start it there"
        )


def raise_open_files() -> int:
    """Let the process open as many files as the system allows it; how many that are. Each connection is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    for wanted in (most, min(most, OPEN_FILES_FEW)):
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:  # macOS names no limit and has one all the same
            log.info("the limit of open files stays as it is", extra={"wanted": wanted, "error": str(error)})
            continue
        soft = wanted
    log.info("open files", extra={"limit": soft, "hard_limit": hard})
    return OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft
