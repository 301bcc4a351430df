"""A process with a file size limit, to simulate a full disk for a while.

Settings: `path`, `topics`, `text_chars`.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.operations import Append
from magent2.bus.sqlite import SqliteBus
from magent2.errors import StorageError
from tests.support.numbered_appends import append_id, numbered_append
from tests.support.processes import report, settings

FILE_MAX_BYTES = 1 << 20
APPENDS_MAX = 1000


def main() -> None:
    given = settings()
    bus = SqliteBus(Path(given["path"]))
    bus.call(append(given, 1))
    _, unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_MAX_BYTES, unlimited))
    full, error = fill(bus, given)
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    bus.call(append(given, full))
    bus.close()
    report(error=error, acknowledged=[append_id("w", n) for n in range(1, full + 1)])


def append(given: dict[str, Any], n: int) -> Append:
    return numbered_append(given["topics"], "w", n, given["text_chars"])


def fill(bus: Engine, given: dict[str, Any]) -> tuple[int, str]:
    """The first append that was refused, and how."""
    for n in range(2, APPENDS_MAX):
        try:
            bus.call(append(given, n))
        except StorageError as error:
            return n, type(error).__name__
    raise AssertionError("the limit was never reached")


if __name__ == "__main__":
    main()
