"""Messages per second of one gateway, compared with a FastAPI route that returns its input."""

from __future__ import annotations

import asyncio
import itertools
import uuid

from bench.support.gateway.load_client import Server, all_answered_s
from bench.support.gateway.service_scale import ServiceScale, Site, body, new_names
from bench.support.gateway.stream_client import following
from bench.support.processes import ECHO_AGENT
from bench.support.report import Measure, Pair, compare, run
from bench.support.worker.drain import ONE_WORD


def send(site: Site, scale: ServiceScale) -> Pair:
    """Send to an agent without a worker, so that only the gateway uses the processors."""
    plain = _plain(site.echo, scale.sends, scale.connections)
    return run(compare(plain, _waiting(site.gateway, scale.sends, scale.connections), scale.rounds))


def send_answered(site: Site, scale: ServiceScale) -> Pair:
    """Send to an agent with a worker that answers meanwhile and shares the processors."""
    plain = _plain(site.echo, scale.answered_sends, scale.connections)
    return run(compare(plain, _answered(site.gateway, scale.answered_sends, scale.connections), scale.rounds))


def _bodies(count: int, agent: str, names: tuple[str, ...]) -> list[bytes]:
    turns = itertools.cycle(names)
    return [body(next(turns), agent, ONE_WORD) for _ in range(count)]


def _plain(server: Server, count: int, connections: int) -> Measure:
    async def measure() -> float:
        requests = [server.post("/echo", item) for item in _bodies(count, ECHO_AGENT, new_names(connections))]
        return count / await all_answered_s(server, requests, connections)

    return measure


def _waiting(server: Server, count: int, connections: int) -> Measure:
    async def measure() -> float:
        agent, names = f"Nobody-{uuid.uuid4().hex[:12]}", new_names(connections)
        requests = [server.post("/send", item) for item in _bodies(count, agent, names)]
        return count / await all_answered_s(server, requests, connections)

    return measure


def _answered(server: Server, count: int, connections: int) -> Measure:
    """Stop the clock when all messages are accepted, then wait for all answers before the next turn."""

    async def measure() -> float:
        names = new_names(connections)
        requests = [server.post("/send", item) for item in _bodies(count, ECHO_AGENT, names)]
        seconds = await all_answered_s(server, requests, connections)
        async with following(server, names) as listeners:
            shares = [len(range(number, count, connections)) for number in range(connections)]
            await asyncio.gather(*(one.heard(share) for one, share in zip(listeners, shares, strict=True)))
        return count / seconds

    return measure
