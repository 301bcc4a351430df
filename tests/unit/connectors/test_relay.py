from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Claim, GetBlob, Lanes, Leave, PutBlob
from magent2.bus.records import NewRecord
from magent2.connectors import delivery_attempt
from magent2.connectors import relay as relay_module
from magent2.connectors.delivery_attempt import (
    DeliveryAttempt,
    GiveUpDelivery,
    RetryDelivery,
    after_failed_delivery,
)
from magent2.connectors.interface import Attachment, OutgoingMessage
from magent2.connectors.outbox import OutboxItem, drop_item, queue_records, read_outbox, retry_item
from magent2.connectors.relay import Relay, running_relay
from magent2.directory.connectors import (
    CONNECTOR_LIST_TOPIC,
    Capabilities,
    ConnectorRegistration,
    find_connector,
    register_connector,
    unregister_connector,
)
from magent2.errors import IdConflict, InvalidInput, NotTaken, OutcomeUnknown, TransientError
from magent2.mail import lane_loop
from magent2.mail.retry_policy import DELIVERY_RETRY, RetryPolicy
from magent2.models.address import entity_topic, relay_agent
from magent2.sessions.store import create_session, delete_session
from tests.support.engine_wrappers import BeforeFirst
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.fake_receivers import FakeConnector
from tests.support.flaky_engine import UnavailableReads, UnexpectedErrors
from tests.support.waiting import until

GONE = TransientError("the receiver is down")
MAYBE = OutcomeUnknown("lost on the way")
NEVER = NotTaken("too long for us")
QUICK = RetryPolicy(first_s=0.001, max_s=0.002, jitter=0.5, give_up_after_s=3600.0)
IMPATIENT = RetryPolicy(first_s=0.001, max_s=0.002, jitter=0.5, give_up_after_s=0.02)


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    run_sync(engine, create_session, "one", "user:ann")
    run_sync(engine, register_connector, "hook", "kept", Capabilities())
    yield engine
    engine.close()


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
async def relaying(bus: Engine, keeper: FakeConnector, **more: object) -> AsyncIterator[Relay]:
    def make(_: ConnectorRegistration) -> FakeConnector:
        return keeper

    relay = Relay(bus, make, **{"retry": QUICK, **more})  # type: ignore[arg-type]
    task = asyncio.create_task(relay.run())
    try:
        yield relay
    finally:
        relay.drain()
        await task


async def send_all(bus: Engine, keeper: FakeConnector, done: Callable[[], bool], retry: RetryPolicy = QUICK) -> None:
    async with relaying(bus, keeper, retry=retry):
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


async def test_after_some_time_it_is_dead_and_a_person_can_send_it_again_or_drop_it(bus: Engine) -> None:
    first, second = put(bus, "one"), put(bus, "two", "bob")
    absent, keeper = FakeConnector(failures=[GONE] * 10_000), FakeConnector()
    await send_all(bus, absent, lambda: states(bus) == {"one": "dead", "two": "dead"}, retry=IMPATIENT)
    assert all("gave up after" in str(item.reason) and item.tries > 1 for item in items(bus))

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
    lost = asyncio.create_task(Relay(bus, lambda _: keeper, retry=QUICK).run())
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
    lost = asyncio.create_task(Relay(bus, lambda _: keeper, retry=QUICK).run())
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
    keeper = FakeConnector(takes_key=True, only={"maybe": [MAYBE, NEVER], "never": [NEVER]})

    await send_all(bus, keeper, lambda: states(bus) == {"maybe": "unknown", "never": "dead"})

    told = [record.payload for record in bus.read("stream:one") if "code" in record.payload]
    assert sorted((event["message_id"], event["code"]) for event in told) == [
        ("m-maybe", "send_unknown"),
        ("m-never", "send_dead"),
    ]


async def test_what_may_have_arrived_is_unknown_although_its_connector_is_gone(bus: Engine) -> None:
    put(bus, "lost")
    keeper = FakeConnector(gate=asyncio.Event())
    lost = asyncio.create_task(Relay(bus, lambda _: keeper, retry=QUICK).run())
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
    ("error", "elapsed_s", "takes_key", "decision"),
    [
        (NEVER, 0, True, GiveUpDelivery("dead", "too long for us")),
        (NEVER, 0, False, GiveUpDelivery("dead", "too long for us")),
        (MAYBE, 0, False, GiveUpDelivery("unknown", "lost on the way")),
        (MAYBE, 3600, True, GiveUpDelivery("unknown", "gave up after 9 attempts in 3600 s: lost on the way")),
        (GONE, 3600, True, GiveUpDelivery("dead", "gave up after 9 attempts in 3600 s: the receiver is down")),
    ],
)
def test_when_it_is_given_up(error: Exception, elapsed_s: float, takes_key: bool, decision: GiveUpDelivery) -> None:
    assert after_failed_delivery(error, 9, elapsed_s, takes_key, DELIVERY_RETRY, 0.5) == decision


def test_waits_grow_and_are_spread_for_an_hour() -> None:
    waits = [
        after_failed_delivery(GONE, attempt, 3599, False, DELIVERY_RETRY, chance)
        for attempt in (1, 2, 7, 100)
        for chance in (0.0, 1.0)
    ]

    assert waits == [RetryDelivery(seconds) for seconds in (1.0, 0.5, 2.0, 1.0, 64.0, 32.0, 300.0, 150.0)]


# --- unexpected errors


UNEXPECTED = (ValueError("odd header"), KeyError("id"), MemoryError(), asyncio.CancelledError())
each_error = pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)


@each_error
@pytest.mark.parametrize(("takes_key", "end"), [(False, "unknown"), (True, "sent")])
async def test_an_unexpected_error_of_a_connector_costs_its_message_one_attempt_and_others_go_on(
    bus: Engine, error: Exception, takes_key: bool, end: str
) -> None:
    put(bus, "odd")
    put(bus, "next")
    put(bus, "other", "bob")
    keeper = FakeConnector(takes_key=takes_key, only={"odd": [error]})

    await send_all(bus, keeper, lambda: states(bus) == {"odd": end, "next": "sent", "other": "sent"})

    reasons = {item.message.text: item.reason for item in items(bus)}
    assert takes_key or "the connector failed" in str(reasons["odd"])


async def test_a_message_whose_file_cannot_be_read_at_first_is_sent(bus: Engine) -> None:
    name = bus.call(PutBlob(b"a picture"))
    connector = run_sync(bus, find_connector, "hook").state
    picture = Attachment("a.png", name, "image/png", 9)
    message = OutgoingMessage(
        "m1", "hook", "ann", "one", "Ada", "look", "2026-01-01T00:00:00+00:00", attachments=(picture,)
    )
    bus.call(Append(records=queue_records(message, connector)))
    keeper = FakeConnector()

    await send_all(
        UnexpectedErrors(bus, GetBlob, [KeyError("a bug")]), keeper, lambda: states(bus)["look"] in ("sent", "unknown")
    )

    assert states(bus) == {"look": "sent"}


async def test_a_connector_that_always_raises_has_its_messages_given_up_visibly(bus: Engine) -> None:
    put(bus, "odd")
    put(bus, "next")
    keeper = FakeConnector(takes_key=True, only={"odd": [ValueError("odd header")] * 10_000})

    await send_all(bus, keeper, lambda: states(bus) == {"odd": "unknown", "next": "sent"}, retry=IMPATIENT)

    (told,) = [r.payload for r in bus.read("stream:one") if r.payload["event"] == "error"]
    assert told["code"] == "send_unknown"
    assert "the connector failed; the operator's log has the cause (failure id " in told["message"]


async def test_a_connector_that_cannot_be_created_has_its_messages_given_up_visibly(bus: Engine) -> None:
    def make(_: ConnectorRegistration) -> FakeConnector:
        raise ImportError("no such library")

    put(bus, "late")
    relay = Relay(bus, make, retry=IMPATIENT)
    task = asyncio.create_task(relay.run())
    await until(lambda: states(bus) == {"late": "dead"})
    relay.drain()
    await task

    assert "it cannot be opened; the operator's log has the cause (failure id " in str(items(bus)[0].reason)


async def test_connectors_that_cannot_be_closed_do_not_fail_the_relay(bus: Engine) -> None:
    class Stuck(FakeConnector):
        async def aclose(self) -> None:
            raise KeyError("session")

    keeper = Stuck()
    put(bus, "hello")

    await send_all(bus, keeper, lambda: states(bus) == {"hello": "sent"})


@pytest.mark.parametrize("field", [{"attachments": [{"colour": "red"}]}, {"attachments": 7}, {"text": None, "key": 1}])
async def test_a_message_of_a_newer_release_is_buried_or_sent_and_the_next_is_sent(
    bus: Engine, field: dict[str, object]
) -> None:
    connector = run_sync(bus, find_connector, "hook").state
    message = OutgoingMessage("m-new", "hook", "ann", "one", "Ada", "new", "2026-01-01T00:00:00+00:00")
    body, job = queue_records(message, connector)
    bus.call(Append(records=(replace(body, payload={**body.payload, **field}), job)))
    bus.call(Append(records=(NewRecord("outbox:hook", {"event": "recalled", "of": "m-new"}),)))
    bus.call(Append(records=(NewRecord("outbox:hook", {"kind": "policy"}),)))
    put(bus, "next")
    keeper = FakeConnector()

    async with relaying(bus, keeper):
        await until(lambda: "next" in keeper.texts)
        await until(lambda: not bus.call(Lanes(relay_agent("hook"))))

    assert states(bus)["next"] == "sent"


@pytest.mark.parametrize("topic", ["connectors", "outbox:hook", "entity"])
async def test_records_of_another_program_do_not_stop_the_relay(
    bus: Engine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_loop, "LANE_RETRY_FIRST_S", 0.001)
    name = {"connectors": CONNECTOR_LIST_TOPIC, "entity": entity_topic("connector", "other")}.get(topic, topic)
    run_sync(bus, register_connector, "other", "kept", Capabilities())
    bus.call(Append(records=(NewRecord(name, {"colour": "red"}),)))
    broken = run_sync(bus, find_connector, "hook").state
    odd = OutgoingMessage("m-odd", "other", "eve", "one", "Ada", "odd", "2026-01-01T00:00:00+00:00")
    bus.call(Append(records=queue_records(odd, replace(broken, id="other"))))
    put(bus, "hello")

    await send_all(bus, FakeConnector(), lambda: states(bus) == {"hello": "sent"})


async def test_a_lane_without_mail_is_given_up(bus: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_attempt, "NO_JOB_DELAY_S", 60.0)  # it is still to come when the test looks
    put(bus, "hello")
    (lane,) = bus.call(Claim(worker="w1", agents=(relay_agent("hook"),), limit=1, lease_s=60)).lanes

    attempt = DeliveryAttempt(bus, replace(lane, mail=(), pending=0), lambda _: FakeConnector(), retry=QUICK)

    assert await attempt.work()
    assert [one.state for one in bus.call(Lanes(relay_agent("hook")))] == ["later"]


async def test_a_relay_that_fails_is_started_again_whatever_the_error(
    bus: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "RESTART_S", 0.001)
    errors: list[Exception] = [ValueError("odd"), MemoryError(), TransientError("away")]

    class Failing(Relay):
        async def start(self) -> None:
            if errors:
                raise errors.pop()

    keeper = FakeConnector()
    put(bus, "hello")
    async with running_relay(bus, lambda engine: Failing(engine, lambda _: keeper, retry=QUICK)):
        await until(lambda: states(bus) == {"hello": "sent"})
