"""An unprivileged process that tries to write to a log.

Settings: `path`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from magent2.bus.sqlite import SqliteBus
from magent2.errors import Magent2Error
from tests.support.numbered_appends import numbered_append
from tests.support.processes import report, settings

NOBODY = 65534


def main() -> None:
    given = settings()
    with tempfile.TemporaryDirectory() as folder:
        outcome(Path(folder) / "log.db")  # imports all that is imported late, while it may still be read
    if os.getuid() == 0:
        os.setuid(NOBODY)
    report(error=outcome(Path(given["path"])))


def outcome(path: Path) -> str:
    try:
        bus = SqliteBus(path)
        try:
            bus.call(numbered_append(["stream:one"], "nobody", 1))
        finally:
            bus.close()
    except Magent2Error as error:
        return type(error).__name__
    return "written"


if __name__ == "__main__":
    main()
