"""A process that appends to topics: a burst at each `go`, until another line comes.

Settings: `url`, `topics`, `name`, `burst` (appends), `start`, the number of its first append, and `patient`: whether it
goes on while the bus is away.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from tests.support.audited_lane import call_with_retry
from tests.support.numbered_appends import numbered_append
from tests.support.processes import await_line, report, settings


def main() -> None:
    given = settings()
    engine = connect(given["url"])
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    report(ready=given["name"])
    n = given["start"]
    while lines.get() == "go":
        n = _write(engine, given, n, lines)
    engine.close()


def _listen(lines: queue.Queue[str]) -> None:
    while True:
        lines.put(await_line())


def _write(engine: Engine, given: dict[str, Any], n: int, lines: queue.Queue[str]) -> int:
    """The number after the last append of the burst."""
    end: int = n + given["burst"]
    for following in range(n, end):
        if not lines.empty():
            return following
        operation = numbered_append(given["topics"], given["name"], following)
        answer = call_with_retry(engine, operation) if given["patient"] else engine.call(operation)
        report(n=following, seq=answer.seqs[0])
    return end


if __name__ == "__main__":
    main()
