"""Tokens per second from a worker through the log and the gateway to clients, and whether all arrive."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import redis.asyncio

from bench.support import postgres_server
from bench.support.bus.publish import raw_insert_s, raw_log
from bench.support.gateway.load_client import RequestConnection, Server
from bench.support.gateway.service_scale import ServiceScale, Site, body, new_names
from bench.support.gateway.stream_client import Listener, following
from bench.support.processes import ECHO_AGENT, SDK_AGENT
from bench.support.redis_server import raw_publish_s
from bench.support.report import Envelope, Measure, Pair, Stopwatch, compare, run
from bench.support.worker.sdk_runs import QUESTION, Job, alone, answer_of, talker

WORD = "word "


async def talks_s(server: Server, agent: str, text: str, talks: int) -> tuple[float, list[Listener]]:
    """Seconds from the first POST until every client has its answer, and what the clients heard."""
    names = new_names(talks)
    callers = [await RequestConnection.dial(server) for _ in names]
    requests = [server.post("/send", body(name, agent, text)) for name in names]
    try:
        async with following(server, names) as listeners:
            with Stopwatch() as watch:
                sending = [caller.ask(request) for caller, request in zip(callers, requests, strict=True)]
                await asyncio.gather(*sending, *(listener.heard(1) for listener in listeners))
    finally:
        for caller in callers:
            caller.close()
    return watch.seconds, listeners


def check_talk(listener: Listener, tokens: int, answer: str) -> list[Envelope]:
    """The tokens of a talk: each once, in order, and the answer after them; nothing is missing in between."""
    events = listener.events()
    seqs = [event["seq"] for event in events]
    if seqs != list(range(seqs[0], seqs[0] + len(seqs))):
        raise RuntimeError("a client's events have a gap, or are out of order")
    heard = [event for event in events if event["event"] == "token"]
    if [event["index"] for event in heard] != list(range(tokens)):
        raise RuntimeError(f"a client heard {len(heard)} tokens of {tokens}, or not in order")
    if "".join(event["text"] for event in heard) != answer:
        raise RuntimeError("a client's tokens are not the answer")
    return heard


# --- echo, compared with a plain append --------------------------------------------------------------------------

Append = Callable[[str, list[Envelope]], Awaitable[float]]  # seconds


def redis_tokens(url: str, site: Site, scale: ServiceScale) -> Pair:
    return run(_redis_tokens(url, site, scale))


async def _redis_tokens(url: str, site: Site, scale: ServiceScale) -> Pair:
    async with redis.asyncio.Redis.from_url(url) as client:

        async def append(topic: str, payloads: list[Envelope]) -> float:
            seconds = await raw_publish_s(client, topic, payloads)
            await client.delete(topic)
            return seconds

        return await _tokens(site, scale, append)


def sqlite_tokens(raw_path: Path, site: Site, scale: ServiceScale) -> Pair:
    connection = raw_log(raw_path)
    try:
        return run(_sqlite_tokens(connection, site, scale))
    finally:
        connection.close()


async def _sqlite_tokens(connection: sqlite3.Connection, site: Site, scale: ServiceScale) -> Pair:
    async def append(topic: str, payloads: list[Envelope]) -> float:
        return raw_insert_s(connection, topic, payloads)

    return await _tokens(site, scale, append)


def postgres_tokens(url: str, site: Site, scale: ServiceScale) -> Pair:
    with closing(postgres_server.raw_log(url)) as connection:

        async def append(topic: str, payloads: list[Envelope]) -> float:
            return postgres_server.raw_insert_s(connection, topic, payloads)

        return run(_tokens(site, scale, append))


async def _tokens(site: Site, scale: ServiceScale, append: Append) -> Pair:
    """The plain append writes the payloads that the clients received in a first talk."""
    text, total = WORD * scale.words, scale.talks * scale.words

    async def talk() -> tuple[float, list[list[Envelope]]]:
        seconds, listeners = await talks_s(site.gateway, ECHO_AGENT, text, scale.talks)
        return seconds, [check_talk(listener, scale.words, text) for listener in listeners]

    _, payloads = await talk()

    async def raw() -> float:
        return total / sum([await append(f"raw:{name}", heard) for name, heard in _named(payloads)])

    async def ours() -> float:
        return total / (await talk())[0]

    return await compare(raw, ours, scale.rounds)


def _named(payloads: list[list[Envelope]]) -> list[tuple[str, list[Envelope]]]:
    return list(zip(new_names(len(payloads)), payloads, strict=True))


# --- runs of the SDK, compared with the SDK alone ----------------------------------------------------------------


def sdk_tokens(site: Site, scale: ServiceScale) -> Pair:
    """As many runs at a time as there are talks; tokens a second."""
    agent: Any = talker(scale.sdk_tokens)
    job = Job(agent, answer_of(scale.sdk_tokens), scale.talks * scale.sdk_waves, scale.talks)
    by_itself = alone(job)

    async def raw() -> float:
        return scale.sdk_tokens / await by_itself() * 1e3

    return run(compare(raw, _sdk_through_us(site, scale), scale.rounds))


def _sdk_through_us(site: Site, scale: ServiceScale) -> Measure:
    answer = answer_of(scale.sdk_tokens)

    async def measure() -> float:
        seconds = 0.0
        for _ in range(scale.sdk_waves):
            taken, listeners = await talks_s(site.gateway, SDK_AGENT, QUESTION, scale.talks)
            seconds += taken
            for listener in listeners:
                check_talk(listener, scale.sdk_tokens, answer)
        return scale.talks * scale.sdk_waves * scale.sdk_tokens / seconds

    return measure
