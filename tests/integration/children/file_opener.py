"""A process that opens one new file after another, each at a `go`, and writes one record into it.

Settings: `name`, `paths`.
"""

from __future__ import annotations

from pathlib import Path

from magent2.bus.operations import Info
from magent2.bus.sqlite import SqliteBus
from tests.support.numbered_appends import numbered_append
from tests.support.processes import await_line, report, settings

TOPIC = "stream:one"


def main() -> None:
    given = settings()
    report(ready=given["name"])
    for path in given["paths"]:
        await_line()
        bus = SqliteBus(Path(path))
        bus.call(numbered_append([TOPIC], given["name"], 1))
        report(log_id=bus.call(Info()).log_id)
        bus.close()


if __name__ == "__main__":
    main()
