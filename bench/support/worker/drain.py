"""How fast one worker answers a backlog with echo, compared with a simple loop without its guarantees."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import redis.asyncio

from bench.support.report import SENTENCE, Connect, Envelope, Pair, Stopwatch, compare, envelope, run
from bench.support.worker.backlog import Backlog, WorkerScale, answer_s, check_answers, new_backlog
from magent2.bus.base import EngineBase
from magent2.runner.echo import EchoRunner
from magent2.worker.service import CONCURRENCY

ONE_WORD = SENTENCE.strip().replace(" ", "-") * 2  # echo makes a token and an output of it: what the loop writes, too
WORDS = SENTENCE * 2
GROUP = "bench"
BATCH = 100  # messages per read; on SQLite also per commit


async def drain_per_s(bus: EngineBase, backlog: Backlog) -> float:
    seconds = await answer_s(bus, backlog, EchoRunner(), CONCURRENCY)
    await check_answers(bus, backlog, backlog.text)
    return len(backlog.conversations) / seconds


def drain_words_per_s(connect: Connect, scale: WorkerScale) -> float:
    """Messages of forty words, so forty tokens each; the median of the rounds, after one to warm up."""
    return run(_drain_words_per_s(connect(), scale))


async def _drain_words_per_s(bus: EngineBase, scale: WorkerScale) -> float:
    try:
        figures = [await drain_per_s(bus, new_backlog(WORDS, scale.backlog)) for _ in range(scale.rounds + 1)]
    finally:
        await bus.aclose()
    return median(figures[1:])


def _answers(asked: Envelope) -> tuple[bytes, bytes]:
    """A token and an output."""
    facts = {"conversation_id": asked["conversation_id"], "text": asked["content"]}
    return orjson.dumps({"event": "token", "index": 0, **facts}), orjson.dumps({"event": "output", **facts})


def _asked(backlog: Backlog) -> list[bytes]:
    names = backlog.conversations
    return [orjson.dumps({**envelope(name, f"agent:{backlog.agent}"), "content": backlog.text}) for name in names]


# --- on Redis ----------------------------------------------------------------------------------------------------


def redis_drain(url: str, connect: Connect, scale: WorkerScale) -> Pair:
    return run(_redis_drain(url, connect(), scale))


async def _redis_drain(url: str, bus: EngineBase, scale: WorkerScale) -> Pair:
    async with redis.asyncio.Redis.from_url(url) as client:

        async def raw() -> float:
            return await _raw_redis_per_s(client, new_backlog(ONE_WORD, scale.backlog))

        async def ours() -> float:
            return await drain_per_s(bus, new_backlog(ONE_WORD, scale.backlog))

        try:
            return await compare(raw, ours, scale.rounds)
        finally:
            await bus.aclose()


async def _raw_redis_per_s(client: redis.asyncio.Redis, backlog: Backlog) -> float:
    inbox = f"raw:{backlog.agent}"
    pipeline = client.pipeline(transaction=False)
    for item in _asked(backlog):
        pipeline.xadd(inbox, {"payload": item})
    pipeline.xgroup_create(inbox, GROUP, id="0")
    await pipeline.execute()
    with Stopwatch() as watch:
        answered = await _raw_redis_drain(client, inbox)
    if answered != len(backlog.conversations):
        raise RuntimeError(f"the loop answered {answered} of {len(backlog.conversations)} messages")
    return answered / watch.seconds


async def _raw_redis_drain(client: redis.asyncio.Redis, inbox: str) -> int:
    answered = 0
    while True:
        news: Any = await client.xreadgroup(GROUP, "worker", {inbox: ">"}, count=BATCH)
        if not news:
            return answered
        for entry_id, fields in news[0][1]:
            await _raw_redis_answer(client, inbox, entry_id, fields[b"payload"])
            answered += 1


async def _raw_redis_answer(client: redis.asyncio.Redis, inbox: str, entry_id: bytes, payload: bytes) -> None:
    """One message in one round trip."""
    asked = orjson.loads(payload)
    token, output = _answers(asked)
    stream = f"raw:stream:{asked['conversation_id']}"
    pipeline = client.pipeline(transaction=False)
    pipeline.xadd(stream, {"payload": token})
    pipeline.xadd(stream, {"payload": output})
    pipeline.xack(inbox, GROUP, entry_id)
    await pipeline.execute()


# --- on SQLite ---------------------------------------------------------------------------------------------------


def sqlite_drain(raw_path: Path, connect: Connect, scale: WorkerScale) -> Pair:
    return run(_sqlite_drain(raw_path, connect(), scale))


async def _sqlite_drain(raw_path: Path, bus: EngineBase, scale: WorkerScale) -> Pair:
    connection = _raw_file(raw_path)

    async def raw() -> float:
        return _raw_sqlite_per_s(connection, new_backlog(ONE_WORD, scale.backlog))

    async def ours() -> float:
        return await drain_per_s(bus, new_backlog(ONE_WORD, scale.backlog))

    try:
        return await compare(raw, ours, scale.rounds)
    finally:
        connection.close()
        await bus.aclose()


def _raw_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE inbox (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
    connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL)")
    return connection


def _raw_sqlite_per_s(connection: sqlite3.Connection, backlog: Backlog) -> float:
    connection.executemany("INSERT INTO inbox (payload) VALUES (?)", [(item,) for item in _asked(backlog)])
    connection.commit()
    answered = 0
    with Stopwatch() as watch:
        while batch := connection.execute("SELECT seq, payload FROM inbox ORDER BY seq LIMIT ?", (BATCH,)).fetchall():
            _raw_sqlite_answer(connection, batch)
            answered += len(batch)
    if answered != len(backlog.conversations):
        raise RuntimeError(f"the loop answered {answered} of {len(backlog.conversations)} messages")
    return answered / watch.seconds


def _raw_sqlite_answer(connection: sqlite3.Connection, batch: list[tuple[int, bytes]]) -> None:
    """A batch in one commit."""
    for seq, payload in batch:
        asked = orjson.loads(payload)
        rows = [(f"stream:{asked['conversation_id']}", body) for body in _answers(asked)]
        connection.executemany("INSERT INTO log (topic, payload) VALUES (?, ?)", rows)
        connection.execute("DELETE FROM inbox WHERE seq = ?", (seq,))
    connection.commit()
