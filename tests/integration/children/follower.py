"""A process that follows a topic from its beginning and reports what it sees.

When the log has lost the record that it read last, it reports a gap and begins again.

Settings: `url`, `topic`.
"""

from __future__ import annotations

import asyncio

from magent2.bus.connect import connect
from magent2.errors import UnknownCursor
from tests.support.processes import end_with_parent, report, settings


async def main() -> None:
    given = settings()
    end_with_parent()
    engine = connect(given["url"])
    report(ready=True)
    while True:
        try:
            async for record in engine.follow(given["topic"], after=0):
                report(seq=record.seq, id=record.id)
            return
        except UnknownCursor as error:
            report(gap=str(error))


if __name__ == "__main__":
    asyncio.run(main())
