"""A process that blocks on one Redis stream and answers on another, as the floor of a wake-up."""

from __future__ import annotations

import sys
from typing import Any

import redis.asyncio

from bench.support.report import run

PING, PONG = "raw:ping", "raw:pong"


def patient(url: str) -> redis.asyncio.Redis:
    """A client without the default timeout of five seconds, for blocking reads."""
    return redis.asyncio.Redis.from_url(url, socket_timeout=None)


async def answer(url: str) -> None:
    cursors: dict[Any, Any] = {PING: "0"}
    async with patient(url) as reader, patient(url) as writer:
        while True:
            news: Any = await reader.xread(cursors, block=0)
            for entry_id, fields in news[0][1]:
                cursors[PING] = entry_id
                await writer.xadd(PONG, {"payload": fields[b"payload"]})


if __name__ == "__main__":
    run(answer(sys.argv[1]))
