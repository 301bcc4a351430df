"""A process that follows a topic from its beginning and reports what it sees.

Settings: `url`, `topic`.
"""

from __future__ import annotations

import asyncio

from magent2.bus.connect import connect
from tests.support.processes import end_with_parent, report, settings


async def main() -> None:
    given = settings()
    end_with_parent()
    engine = connect(given["url"])
    report(ready=True)
    async for record in engine.follow(given["topic"], after=0):
        report(seq=record.seq, id=record.id)


if __name__ == "__main__":
    asyncio.run(main())
