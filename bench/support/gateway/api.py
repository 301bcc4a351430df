"""The cost of the session API compared with the plain routes, and the cost of authentication."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import orjson

from bench.support.bus.seek import fill
from bench.support.bus.wake import PAUSE_S
from bench.support.gateway.latency import Sample
from bench.support.gateway.load_client import RequestConnection, Server, all_answered_s
from bench.support.gateway.service_scale import body, new_names
from bench.support.gateway.stream_client import following
from bench.support.gateway.two_gateways import GatewayPair
from bench.support.processes import ECHO_AGENT, cpu_s, is_told
from bench.support.report import Measure, Pair, compare, paired, run
from bench.support.worker.drain import ONE_WORD
from magent2.models.address import stream_topic

PAGE = 100  # events per request


@dataclass(frozen=True, slots=True)
class ApiScale:
    """How much is done per measurement."""

    rounds: int
    sends: int
    connections: int
    asks: int
    pages: int
    readers: int
    session_small: int
    session_large: int


FULL = ApiScale(
    rounds=5, sends=2_000, connections=64, asks=200, pages=400, readers=8, session_small=1_000, session_large=25_000
)
QUICK = ApiScale(
    rounds=1, sends=200, connections=8, asks=10, pages=20, readers=2, session_small=500, session_large=2_000
)


# --- events ------------------------------------------------------------------------------------------------------


def events_per_s(gates: GatewayPair, scale: ApiScale) -> Pair:
    """Events a second in pages from near the end: `ours` of a long session, `raw` of a short one."""
    short, long = new_names(2)
    return run(_events(gates, {short: scale.session_small, long: scale.session_large}, scale))


async def _events(gates: GatewayPair, sizes: dict[str, int], scale: ApiScale) -> Pair:
    bus = gates.connect()
    caller = await RequestConnection.dial(gates.guarded)
    try:
        for session, size in sizes.items():
            await caller.ask(
                gates.guarded.post("/send", body(session, ECHO_AGENT, ONE_WORD))
            )  # the creator owns the session
            await fill(bus, stream_topic(session), size)
        short, long = [await _pages(caller, gates.guarded, session, scale) for session in sizes]
        return await compare(short, long, scale.rounds)
    finally:
        caller.close()
        await bus.aclose()


async def _pages(caller: RequestConnection, server: Server, session: str, scale: ApiScale) -> Measure:
    """Requests for the last full page, whose position is looked up first."""
    path = f"/api/sdk/session/{session}"
    last = orjson.loads(_content(await caller.ask(server.get(path))))["last_seq"]
    request = server.get(f"{path}/events?since={last - PAGE}&limit={PAGE}")
    seen = orjson.loads(_content(await caller.ask(request)))
    if len(seen["events"]) != PAGE or seen["next_since"] != last:
        raise RuntimeError(f"{len(seen['events'])} events up to {seen['next_since']}, not {PAGE} up to {last}")

    async def measure() -> float:
        return scale.pages * PAGE / await all_answered_s(server, [request] * scale.pages, scale.readers)

    return measure


def _content(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


# --- messages ----------------------------------------------------------------------------------------------------


def message(gates: GatewayPair, scale: ApiScale) -> Pair:
    """Milliseconds, p50 of a turn, from the request until the client has the answer.

    `ours`: one `POST /api/sdk/session/message`, until its answer is whole. `raw`: a `POST /send`, until the output has
    come on a `/stream` that was open before. Same person, same agent, one after the other in turns.
    """
    return run(_in_turns(gates.guarded, _said, _sent, scale))


def response(gates: GatewayPair, scale: ApiScale) -> Pair:
    """Milliseconds, p50 of a turn: `ours` a streamed `POST /v1/responses`, until its last event; `raw` a
    `POST /api/sdk/session/message`, until its answer is whole. Same person, same agent, same answer.
    """
    return run(_in_turns(gates.guarded, _responded, _said, scale))


Sampling: TypeAlias = Callable[[Server], AbstractAsyncContextManager[Sample]]


async def _in_turns(server: Server, ours: Sampling, raw: Sampling, scale: ApiScale) -> Pair:
    turns = []
    for turn in range(scale.rounds + 1):  # the first warms up
        async with ours(server) as sample, raw(server) as other:
            samples = [(await sample(), await other()) for _ in range(scale.asks)]
        figures, raw_figures = zip(*samples, strict=True)
        if turn:
            turns.append((median(figures), median(raw_figures)))
    return paired(turns)


def _said(server: Server) -> AbstractAsyncContextManager[Sample]:
    def request(session: str) -> bytes:
        asked = {"session_id": session, "user_input": ONE_WORD, "client_message_id": str(uuid.uuid4())}
        return server.post("/api/sdk/session/message", orjson.dumps(asked))

    return _asked(server, request, b'"final_output":' + orjson.dumps(ONE_WORD))


def _responded(server: Server) -> AbstractAsyncContextManager[Sample]:
    def request(session: str) -> bytes:
        asked = {"model": ECHO_AGENT, "input": ONE_WORD, "conversation": session, "stream": True}
        return server.post("/v1/responses", orjson.dumps(asked))

    return _asked(server, request, b"event: response.completed")


@asynccontextmanager
async def _asked(server: Server, make: Callable[[str], bytes], expected: bytes) -> AsyncIterator[Sample]:
    """Samples of requests whose answer is whole when the agent has answered."""
    (session,) = new_names(1)
    await _begin(server, session)
    caller = await RequestConnection.dial(server)

    async def sample() -> float:
        request = make(session)
        await asyncio.sleep(PAUSE_S)  # so that all processes are idle at the start of each sample
        begun = time.perf_counter()
        answer = await caller.ask(request)
        taken = time.perf_counter() - begun
        if expected not in answer:
            raise RuntimeError(f"another answer: {answer[-500:]!r}")
        return taken * 1e3

    try:
        yield sample
    finally:
        caller.close()


async def _begin(server: Server, session: str) -> None:
    """Send the first message, which sets the agent, and wait for its answer; the worker may still be starting."""
    caller = await RequestConnection.dial(server)
    try:
        async with following(server, [session]) as (listener,):
            await caller.ask(server.post("/send", body(session, ECHO_AGENT, ONE_WORD)))
            await listener.heard(1)
    finally:
        caller.close()


@asynccontextmanager
async def _sent(server: Server) -> AsyncIterator[Sample]:
    (conversation,) = new_names(1)
    caller = await RequestConnection.dial(server)
    async with following(server, [conversation]) as (listener,):

        async def sample() -> float:
            request = server.post("/send", body(conversation, ECHO_AGENT, ONE_WORD))
            await asyncio.sleep(PAUSE_S)
            begun, wanted = time.perf_counter(), listener.outputs + 1
            sending = asyncio.ensure_future(caller.ask(request))
            answered = await listener.heard(wanted)
            await sending
            return (answered - begun) * 1e3

        try:
            await sample()
            yield sample
        finally:
            caller.close()


# --- authentication ----------------------------------------------------------------------------------------------


def auth(gates: GatewayPair, scale: ApiScale) -> Pair:
    """Milliseconds of processor time per `POST /send`: `ours` with a key, rate limits and
    ownership checks; `raw` at a gateway in the same process without authentication.

    On Linux it is the CPU time of the whole process, including the engine; elsewhere the time until all are answered.
    """
    return run(compare(_sends(gates.open, scale), _sends(gates.guarded, scale), scale.rounds))


def _sends(server: Server, scale: ApiScale) -> Measure:
    async def measure() -> float:
        agent, names = f"Nobody-{uuid.uuid4().hex[:12]}", new_names(scale.connections)
        requests = [server.post("/send", body(names[n % len(names)], agent, ONE_WORD)) for n in range(scale.sends)]
        begun = cpu_s(server.pid) if is_told() else 0.0
        seconds = await all_answered_s(server, requests, scale.connections)
        return (cpu_s(server.pid) - begun if is_told() else seconds) / scale.sends * 1e3

    return measure
