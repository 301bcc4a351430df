"""The time until a reconnecting client gets the first missed event, in a short and in a very long conversation."""

from __future__ import annotations

import random
import time
from statistics import median

from bench.support.bus.seek import NEAR_THE_END, fill
from bench.support.gateway.load_client import RequestConnection, Server
from bench.support.gateway.service_scale import ServiceScale, Site, new_names
from bench.support.report import Pair, paired, run
from magent2.models.address import stream_topic

EVENT = b"\nevent: token\n"


def resume(site: Site, scale: ServiceScale) -> Pair:
    """Milliseconds from the request until the first event: `ours` in the long conversation, `raw` in the short one."""
    short, long = new_names(2)
    bus = site.connect()
    run(fill(bus, stream_topic(short), scale.resume_small))
    run(fill(bus, stream_topic(long), scale.resume_large))
    bus.close()
    return run(_resume(site.gateway, {short: scale.resume_small, long: scale.resume_large}, scale))


async def _resume(server: Server, lasts: dict[str, int], scale: ServiceScale) -> Pair:
    caller, turns = await RequestConnection.dial(server), []
    try:
        for _ in range(scale.rounds + 1):  # the first warms up
            samples = [[await _first_ms(caller, server, *one) for one in lasts.items()] for _ in range(scale.resumes)]
            turns.append((median(long for _, long in samples), median(short for short, _ in samples)))
    finally:
        caller.close()
    return paired(turns[1:])


async def _first_ms(caller: RequestConnection, server: Server, conversation: str, last: int) -> float:
    """Use a connection that stays open, because the time to connect would hide a difference."""
    cursor = last - random.randint(1, NEAR_THE_END)
    request = server.get(f"/stream/{conversation}?max_events=1", last_event_id=cursor)
    begun = time.perf_counter()
    await caller.ask_until(request, EVENT)
    taken = time.perf_counter() - begun
    answer = await caller.rest()
    if b"\nid: %d\n" % (cursor + 1) not in answer:
        raise RuntimeError(f"the first event after {cursor} of {conversation!r} is another: {answer[-500:]!r}")
    return taken * 1e3
