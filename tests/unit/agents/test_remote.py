"""Messages to runs of another process, on every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.agents import RemoteContext
from magent2.bus.interface import Engine
from magent2.context import BusMessage
from magent2.errors import IdConflict, InvalidInput, NoActiveRun
from magent2.worker.lane_run import Outcome
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.steerable_run import SteerableAgent, receipts, shown_steers
from tests.support.worker_fixture import AGENT, run_worker, send, until


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


async def test_a_message_is_seen_once_rendered_by_the_run_under_way(bus: Engine) -> None:
    talk = SteerableAgent(turns=2)
    context = RemoteContext(bus, "one", require_active=True)
    first = BusMessage(id="m1", content="hurry", source="user:ann", template="please: {{ content }}")
    send(bus, "go")
    async with run_worker(bus, talk.runner) as service:
        await talk.at(0)
        assert context.send_message(first) == first
        context.send_message(first)
        context.send_message(BusMessage(id="m2", content="slowly", source="user:ann", target=AGENT))
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert shown_steers(talk.requests[-1]) == [("user:ann", "please: hurry"), ("user:ann", "slowly")]
    assert receipts(bus) == [("m1", "seen"), ("m2", "seen")]


def test_messages_that_cannot_be_sent_are_refused_by_name(bus: Engine) -> None:
    idle = RemoteContext(bus, "one", require_active=True)
    with pytest.raises(NoActiveRun):
        idle.send_message(BusMessage(content="hurry", source="user:ann"))

    context = RemoteContext(bus, "one")
    context.send_message(BusMessage(id="m1", content="begin", source="user:ann", target=AGENT))
    with pytest.raises(IdConflict):
        context.send_message(BusMessage(id="m1", content="another", source="user:ann", target=AGENT))
    with pytest.raises(InvalidInput, match="has no message 'm2'"):
        context.receipt("m2")


def test_a_receipt_without_a_wait_says_that_no_agent_has_seen_the_message(bus: Engine) -> None:
    context = RemoteContext(bus, "one")
    context.send_message(BusMessage(id="m1", content="begin", source="user:ann", target=AGENT))

    for wait_s in (0.0, 0.01):
        fate = context.receipt("m1", wait_s)

        assert (fate.status, fate.waiting, fate.receipts) == ("accepted", 1, ())
