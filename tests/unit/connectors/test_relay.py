from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Claim, Leave
from magent2.bus.records import NewRecord
from magent2.connectors import delivery_attempt as attempts
from magent2.connectors.delivery_attempt import (
    ATTEMPTS_MAX,
    DELIVERY_RETRY_MAX_S,
    GiveUpDelivery,
    RetryDelivery,
    after_failed_delivery,
)
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import OutboxItem, drop_item, queue_records, read_outbox, retry_item
from magent2.connectors.relay import Relay
from magent2.directory.connectors import (
    Capabilities,
    ConnectorRegistration,
    find_connector,
    register_connector,
    unregister_connector,
)
from magent2.errors import IdConflict, InvalidInput, NotTaken, OutcomeUnknown, TransientError
from magent2.models.address import entity_topic, relay_agent
from magent2.sessions.store import create_session, delete_session
from tests.support.engine_wrappers import BeforeFirst
from tests.support.engines import ENGINES, new_engines
from tests.support.fake_receivers import FakeConnector
from tests.support.flaky_engine import UnavailableReads
from tests.support.waiting import until

GONE = TransientError("the receiver is down")
MAYBE = OutcomeUnknown("lost on the way")
NEVER = NotTaken("too long for us")


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    run_sync(engine, create_session, "one", "user:ann")
    run_sync(engine, register_connector, "hook", "kept", Capabilities())
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "DELIVERY_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(attempts, "DELIVERY_RETRY_MAX_S", 0.002)


def put(bus: Engine, text: str, target: str = "ann") -> str:
    connector = run_sync(bus, find_connector, "hook").state
    message = OutgoingMessage(f"m-{text}", "hook", target, "one", "Ada", text, "2026-01-01T00:00:00+00:00")
    bus.call(Append(records=queue_records(message, connector)))
    return message.key


def states(bus: Engine) -> dict[str, str]:
    return {item.message.text: item.state for item in items(bus)}


def items(bus: Engine) -> list[OutboxItem]:
    return run_sync(bus, read_outbox, "hook")


@asynccontextmanager
async def relaying(bus: Engine, keeper: FakeConnector, **more: float) -> AsyncIterator[Relay]:
    def make(_: ConnectorRegistration) -> FakeConnector:
        return keeper

    relay = Relay(bus, make, **more)  # type: ignore[arg-type]
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        relay.drain()
        await task


async def send_all(bus: Engine, keeper: FakeConnector, done: Callable[[], bool]) -> None:
    async with relaying(bus, keeper):
        await until(done)


async def test_messages_go_in_order_per_destination_and_are_noted_with_their_receipts(bus: Engine) -> None:
    keeper = FakeConnector(failures=[GONE, None, GONE])
    for number in range(4):
        put(bus, f"a{number}")
        put(bus, f"b{number}", "bob")

    await send_all(bus, keeper, lambda: set(states(bus).values()) == {"sent"})

    for letter in "ab":
        assert [text for text in keeper.texts if text[0] == letter] == [f"{letter}{number}" for number in range(4)]
    assert all(item.receipt for item in items(bus))


async def test_a_destination_that_fails_does_not_hold_up_another(bus: Engine) -> None:
    gate = asyncio.Event()
    keeper = FakeConnector(gate=gate)
    put(bus, "slow")
    put(bus, "other", "bob")

    async with relaying(bus, keeper):
        await until(lambda: sorted(keeper.texts) == ["other", "slow"])
        gate.set()
        await until(lambda: set(states(bus).values()) == {"sent"})


async def test_a_moment_without_the_log_ends_no_relay_and_costs_no_attempt(bus: Engine) -> None:
    absent = UnavailableReads(bus, entity_topic("connector", "hook"), times=2)
    keeper = FakeConnector()
    put(bus, "hello")

    await send_all(absent, keeper, lambda: states(bus) == {"hello": "sent"})

    assert (absent.left, keeper.texts) == (0, ["hello"])


async def test_what_is_refused_is_dead_at_once_and_the_conversation_is_told(bus: Engine) -> None:
    put(bus, "no")
    put(bus, "yes")

    await send_all(bus, FakeConnector(failures=[NEVER]), lambda: states(bus) == {"no": "dead", "yes": "sent"})

    (told,) = [r.payload for r in bus.read("stream:one") if r.payload["event"] == "error"]
    assert (told["code"], told["message_id"]) == ("send_dead", "m-no")


async def test_after_so_many_attempts_it_is_dead_and_a_person_can_send_it_again_or_drop_it(bus: Engine) -> None:
    first, second = put(bus, "one"), put(bus, "two", "bob")
    keeper = FakeConnector(failures=[GONE] * (2 * ATTEMPTS_MAX))
    await send_all(bus, keeper, lambda: states(bus) == {"one": "dead", "two": "dead"})

    run_sync(bus, retry_item, "hook", first)
    run_sync(bus, drop_item, "hook", second)
    await send_all(bus, keeper, lambda: states(bus)["one"] == "sent")

    assert (keeper.texts, states(bus)) == (["one"], {"one": "sent", "two": "dropped"})
    with pytest.raises(InvalidInput, match="only dead and unknown messages"):
        run_sync(bus, retry_item, "hook", first)


async def test_an_unknown_outcome_waits_for_a_person_where_no_key_is_taken(bus: Engine) -> None:
    item = put(bus, "maybe")
    keeper = FakeConnector(failures=[MAYBE])
    await send_all(bus, keeper, lambda: states(bus) == {"maybe": "unknown"})
    assert keeper.texts == []

    run_sync(bus, retry_item, "hook", item)
    await send_all(bus, keeper, lambda: states(bus) == {"maybe": "sent"})

    assert keeper.texts == ["maybe"]


async def test_what_comes_after_an_unknown_message_goes_on_and_a_retry_goes_behind_it(bus: Engine) -> None:
    first = put(bus, "maybe")
    put(bus, "second")
    keeper = FakeConnector(failures=[MAYBE])
    await send_all(bus, keeper, lambda: states(bus) == {"maybe": "unknown", "second": "sent"})

    put(bus, "third")
    run_sync(bus, retry_item, "hook", first)
    await send_all(bus, keeper, lambda: set(states(bus).values()) == {"sent"})

    assert [message.text for message in keeper.arrived] == ["second", "third", "maybe"]


async def test_an_unknown_outcome_is_tried_again_under_the_same_key_where_one_is_taken(bus: Engine) -> None:
    put(bus, "maybe")
    keeper = FakeConnector(takes_key=True, failures=[MAYBE, MAYBE])

    await send_all(bus, keeper, lambda: states(bus) == {"maybe": "sent"})

    assert [message.key for message in keeper.arrived] == ["m-maybe"]


@pytest.mark.parametrize("takes_key", [True, False])
async def test_a_relay_that_is_lost_while_sending_leaves_it_to_the_next(bus: Engine, takes_key: bool) -> None:
    put(bus, "lost")
    keeper = FakeConnector(takes_key=takes_key, gate=asyncio.Event())
    lost = asyncio.create_task(Relay(bus, lambda _: keeper).run())
    await until(lambda: keeper.texts == ["lost"])
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    keeper.gate = None

    end = "sent" if takes_key else "unknown"
    await send_all(bus, keeper, lambda: states(bus) == {"lost": end})

    assert keeper.texts == (["lost", "lost"] if takes_key else ["lost"])


async def test_what_may_have_arrived_is_not_sent_again_though_the_next_relay_is_lost_as_well(bus: Engine) -> None:
    put(bus, "lost")
    keeper = FakeConnector(gate=asyncio.Event())
    lost = asyncio.create_task(Relay(bus, lambda _: keeper).run())
    await until(lambda: keeper.texts == ["lost"])
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    keeper.gate = None
    bus.call(Claim(worker="next", agents=(relay_agent("hook"),), limit=1, lease_s=30.0))
    bus.call(Leave("next"))

    await send_all(bus, keeper, lambda: states(bus) == {"lost": "unknown"})

    assert keeper.texts == ["lost"]


async def test_what_a_deleted_conversation_wanted_to_send_is_not_sent(bus: Engine) -> None:
    put(bus, "secret")
    run_sync(bus, delete_session, "one")
    keeper = FakeConnector()
    async with relaying(bus, keeper):
        run_sync(bus, create_session, "two", "user:ann")
        connector = run_sync(bus, find_connector, "hook").state
        message = OutgoingMessage("m-next", "hook", "ann", "two", "Ada", "next", "2026-01-01T00:00:00+00:00")
        bus.call(Append(records=queue_records(message, connector)))
        await until(lambda: keeper.texts == ["next"])


async def test_what_may_have_arrived_is_unknown_although_the_last_attempt_was_refused(bus: Engine) -> None:
    put(bus, "maybe")
    put(bus, "never", "bob")
    keeper = FakeConnector(takes_key=True, failures=[MAYBE, NEVER, NEVER])

    await send_all(bus, keeper, lambda: sorted(states(bus).values()) == ["dead", "unknown"])

    assert [record.payload["code"] for record in bus.read("stream:one") if "code" in record.payload] == [
        "send_dead",
        "send_unknown",
    ]


async def test_what_may_have_arrived_is_unknown_although_its_connector_is_gone(bus: Engine) -> None:
    put(bus, "lost")
    keeper = FakeConnector(gate=asyncio.Event())
    lost = asyncio.create_task(Relay(bus, lambda _: keeper).run())
    await until(lambda: keeper.texts == ["lost"])
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    run_sync(bus, unregister_connector, "hook")

    await send_all(bus, keeper, lambda: states(bus) == {"lost": "unknown"})


async def test_mail_that_is_no_relay_job_becomes_a_dead_letter(bus: Engine) -> None:
    forged = {"conversation_id": "forged", "sender": "user:eve", "content": "hi"}
    bus.call(Append(records=(NewRecord("chat:outbox:hook", forged),)))

    await send_all(bus, FakeConnector(), lambda: bool(bus.read("dead:outbox:hook")))


async def test_a_message_that_cannot_be_read_is_buried_and_the_next_is_sent(bus: Engine) -> None:
    connector = run_sync(bus, find_connector, "hook").state
    message = OutgoingMessage("m-odd", "hook", "ann", "one", "Ada", "odd", "2026-01-01T00:00:00+00:00")
    body, job = queue_records(message, connector)
    odd = {name: value for name, value in body.payload.items() if name != "text"}
    bus.call(Append(records=(replace(body, payload=odd), job)))
    put(bus, "next")
    keeper = FakeConnector()

    async with relaying(bus, keeper):
        await until(lambda: keeper.texts == ["next"])

    (dead,) = bus.read("dead:outbox:hook")
    assert "cannot read message 'm-odd' in the outbox of 'hook'" in dead.payload["reason"]


async def test_what_waits_for_a_connector_that_was_removed_is_dead(bus: Engine) -> None:
    put(bus, "late")
    run_sync(bus, unregister_connector, "hook")

    await send_all(bus, FakeConnector(), lambda: states(bus) == {"late": "dead"})


async def test_a_connector_that_is_set_up_while_the_relay_runs_is_served(bus: Engine) -> None:
    keeper = FakeConnector()
    async with relaying(bus, keeper):
        new = run_sync(bus, register_connector, "later", "kept", Capabilities())
        message = OutgoingMessage("m-1", "later", "ann", "one", "Ada", "hello", "2026-01-01T00:00:00+00:00")
        bus.call(Append(records=queue_records(message, new)))
        await until(lambda: keeper.texts == ["hello"])


def test_of_two_decisions_about_one_message_the_second_is_told(bus: Engine) -> None:
    item = put(bus, "stuck")
    bus.call(Append(records=(NewRecord("outbox:hook", {"event": "dead", "of": item, "reason": "no"}),)))

    def retry_and_fail() -> None:
        run_sync(bus, retry_item, "hook", item)
        bus.call(Append(records=(NewRecord("outbox:hook", {"event": "dead", "of": item, "reason": "no"}),)))

    with pytest.raises(IdConflict):
        run_sync(BeforeFirst(bus, Append, retry_and_fail), drop_item, "hook", item)


@pytest.mark.parametrize(
    ("error", "attempt", "takes_key", "decision"),
    [
        (NEVER, 1, True, GiveUpDelivery("dead", "too long for us")),
        (NEVER, 1, False, GiveUpDelivery("dead", "too long for us")),
        (MAYBE, 1, False, GiveUpDelivery("unknown", "lost on the way")),
        (
            MAYBE,
            ATTEMPTS_MAX,
            True,
            GiveUpDelivery("unknown", f"gave up after {ATTEMPTS_MAX} attempts: lost on the way"),
        ),
        (
            GONE,
            ATTEMPTS_MAX,
            True,
            GiveUpDelivery("dead", f"gave up after {ATTEMPTS_MAX} attempts: the receiver is down"),
        ),
    ],
)
def test_when_it_is_given_up(error: Exception, attempt: int, takes_key: bool, decision: GiveUpDelivery) -> None:
    assert after_failed_delivery(error, attempt, takes_key, 0.5) == decision


def test_waits_grow_and_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    waits = [after_failed_delivery(GONE, attempt, False, chance) for attempt in (1, 2, 7) for chance in (0.0, 1.0)]

    assert waits == [
        RetryDelivery(0.5),
        RetryDelivery(1.0),
        RetryDelivery(1.0),
        RetryDelivery(2.0),
        RetryDelivery(32.0),
        RetryDelivery(64.0),
    ]
    assert DELIVERY_RETRY_MAX_S == 300.0
