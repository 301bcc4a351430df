"""Gateways that share a log, and a worker that answers on it."""

from __future__ import annotations

import asyncio

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.runner.echo import EchoRunner
from tests.support.gateway import ServedGateway, message, parse_frames, serve_gateway
from tests.support.worker_fixture import AGENT, run_worker

READERS = 4
TALKS = 5


async def follow(house: ServedGateway, conversation: str, count: int) -> list[tuple[int | None, str]]:
    answer = await house.client.get(f"/stream/{conversation}", params={"max_events": count, "kinds": "output"})
    return [(event.id, event.data["text"]) for event in parse_frames(answer.text) if event.kind == "output"]


async def test_readers_of_one_gateway_see_messages_of_another_in_log_order(log_url: str, engine: Engine) -> None:
    other = connect(log_url)
    async with serve_gateway(engine) as first, serve_gateway(other) as second, run_worker(engine, EchoRunner()):
        reading = [
            asyncio.create_task(follow(house, f"c{number}", TALKS))
            for house in (first, second)
            for number in range(READERS)
        ]
        for talk in range(TALKS):
            for number in range(READERS):
                house = (first, second)[talk % 2]
                sent = message(f"hello {talk}", f"c{number}", recipient=f"agent:{AGENT}")
                assert (await house.client.post("/send", json=sent)).status_code == 200

        seen = await asyncio.gather(*reading)

        for at_first, at_second in zip(seen[:READERS], seen[READERS:], strict=True):
            assert at_first == at_second
            assert [text for _, text in at_first] == [f"hello {talk}" for talk in range(TALKS)]
    await other.aclose()


async def test_a_gateway_that_is_replaced_leaves_a_cursor_that_the_next_one_knows(log_url: str, engine: Engine) -> None:
    async with serve_gateway(engine) as first:
        for number in range(6):
            await first.client.post("/send", json=message(str(number)))
        begun = await first.client.get("/stream/one", params={"max_events": 3})
    cursor = max(event.id or 0 for event in parse_frames(begun.text))

    async with serve_gateway(engine) as second:
        rest = await second.client.get("/stream/one", params={"max_events": 3}, headers={"last-event-id": str(cursor)})

    seqs = [event.id for event in parse_frames(begun.text + rest.text) if event.id is not None]
    assert seqs == [1, 2, 3, 4, 5, 6]
