"""Seed 001: the synchronous worker, on any bus, and which runner `python -m magent2.worker` takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.interface import Bus, BusMessage, Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe, Workers
from magent2.errors import AddressError, LimitError, NameTaken, TransientError
from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent, ToolStepEvent
from magent2.runner.echo import EchoRunner
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.run_stream import Event
from magent2.worker.__main__ import build_runner
from magent2.worker.worker import Runner, Worker
from tests.support.engines import ENGINES, new_engines
from tests.support.runners import FailingRunner, GatedRunner, GatedThreadRunner, SyncRunner, output, token
from tests.support.v1_bus import V1Bus
from tests.support.waiting import eventually
from tests.support.worker_fixture import (
    AGENT,
    claim_one,
    command,
    dead_letters,
    envelope,
    errors,
    kinds,
    outputs,
    send,
    stream,
)

INBOX = f"chat:{AGENT}"


def publish(bus: Bus, mail: MessageEnvelope, **fields: Any) -> str:
    """As a gateway of v1 does it."""
    payload = {**mail.model_dump(mode="json"), **fields}
    bus.publish(f"chat:{mail.conversation_id}", BusMessage(f"chat:{mail.conversation_id}", payload, mail.id))
    return bus.publish(INBOX, BusMessage(INBOX, payload, mail.id))


def events(bus: Bus, conversation: str = "one") -> list[dict[str, Any]]:
    return [record.payload for record in bus.read(f"stream:{conversation}", None, 10_000)]


@pytest.fixture(params=["v1", *ENGINES])
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    """A bus of contract v1 alone, and each of our engines."""
    if request.param == "v1":
        yield V1Bus()
        return
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


# --- on every bus


def test_an_echo_comes_back_as_tokens_and_output(bus: Bus) -> None:
    publish(bus, envelope("hello you"))

    assert Worker(AGENT, bus, EchoRunner()).process_available() == 1

    told = [event for event in events(bus) if event["event"] in ("token", "output")]
    assert [(event["event"], event["text"]) for event in told] == [
        ("token", "hello "),
        ("token", "you"),
        ("output", "hello you"),
    ]
    assert [event["index"] for event in told[:2]] == [0, 1]


def test_mail_is_answered_once_and_in_order(bus: Bus) -> None:
    worker = Worker(AGENT, bus, EchoRunner())
    for n in range(5):
        publish(bus, envelope(str(n)))

    assert [worker.process_available(), worker.process_available()] == [5, 0]
    publish(bus, envelope("5"))
    assert worker.process_available() == 1

    assert [event["text"] for event in events(bus) if event["event"] == "output"] == ["0", "1", "2", "3", "4", "5"]


def test_a_limit_leaves_the_rest_for_the_next_call(bus: Bus) -> None:
    worker = Worker(AGENT, bus, EchoRunner())
    for n in range(5):
        publish(bus, envelope(str(n)))

    assert [worker.process_available(2) for _ in range(4)] == [2, 2, 1, 0]
    assert [event["text"] for event in events(bus) if event["event"] == "output"] == ["0", "1", "2", "3", "4"]


def test_an_empty_inbox_is_nothing_to_do(bus: Bus) -> None:
    assert Worker(AGENT, bus, EchoRunner()).process_available() == 0


def test_a_runner_may_yield_dicts(bus: Bus) -> None:
    publish(bus, envelope("hello"))
    said = {"event": "output", "text": "hi", "conversation_id": "one"}

    assert Worker(AGENT, bus, SyncRunner(lambda _: [said])).process_available() == 1
    (told,) = [event for event in events(bus) if event["event"] == "output"]
    assert said.items() <= told.items()


def test_every_kind_of_v1_event_keeps_its_shape(bus: Bus) -> None:
    said = [
        TokenEvent(conversation_id="one", text="a", index=0),
        ToolStepEvent(conversation_id="one", name="search", args={"q": "x"}, status="start"),
        OutputEvent(conversation_id="one", text="a", usage={"total_tokens": 1}),
    ]
    publish(bus, envelope("hello"))

    Worker(AGENT, bus, SyncRunner(lambda _: said)).process_available()

    told = [event for event in events(bus) if event["event"] in ("token", "tool_step", "output")]
    for event, record in zip(said, told, strict=True):
        assert event.model_dump(mode="json").items() <= record.items()


def logged_causes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(vars(record).get("error")) for record in caplog.records]


def test_a_runner_that_raises_does_not_lose_the_mail_behind_it(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield token(mail, "half")
        if mail.content == "bad":
            raise LookupError("no such page")
        yield output(mail, "whole")

    for text in ("good", "bad", "good again"):
        publish(bus, envelope(text))

    assert Worker(AGENT, bus, SyncRunner(script)).process_available() == 3
    assert len([event for event in events(bus) if event["event"] == "output"]) == 2
    assert any("no such page" in cause for cause in logged_causes(caplog))


def test_the_agents_own_message_is_not_answered(bus: Bus) -> None:
    publish(bus, envelope("to myself", sender=f"agent:{AGENT}"))
    publish(bus, envelope("hello"))

    assert Worker(AGENT, bus, EchoRunner()).process_available() == 1
    assert [event["text"] for event in events(bus) if event["event"] == "output"] == ["hello"]


def test_mail_that_is_no_envelope_does_not_stop_the_worker(bus: Bus) -> None:
    bus.publish(INBOX, BusMessage(INBOX, {"conversation_id": "one", "colour": "blue"}))
    publish(bus, envelope("hello"))

    Worker(AGENT, bus, EchoRunner()).process_available()

    assert [event["text"] for event in events(bus) if event["event"] == "output"] == ["hello"]


def test_1100_tokens_reach_a_slow_reader_in_order(bus: Bus) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        for n in range(1100):
            yield token(mail, f"{n} ", n)

    publish(bus, envelope("count"))
    Worker(AGENT, bus, SyncRunner(script)).process_available()

    first = next(iter(bus.read("stream:one", None, 10_000)))
    cursor, indexes = first.id, [first.payload.get("index")]
    while page := list(bus.read("stream:one", cursor, 7)):
        indexes += [record.payload.get("index") for record in page]
        cursor = page[-1].id
    assert [index for index in indexes if index is not None] == list(range(1100))


async def test_it_works_where_an_event_loop_runs(bus: Bus) -> None:
    publish(bus, envelope("hello"))

    assert Worker(AGENT, bus, EchoRunner()).process_available() == 1


def test_a_bad_name_and_a_bad_limit_are_refused(bus: Bus) -> None:
    with pytest.raises(AddressError):
        Worker(" ", bus, EchoRunner())
    with pytest.raises(LimitError):
        Worker(AGENT, bus, EchoRunner()).process_available(0)


# --- on a bus of v1 alone


def test_a_v1_bus_gets_exactly_what_the_runner_yields() -> None:
    bus = V1Bus()
    event, other = TokenEvent(conversation_id="one", text="a", index=0), {"event": "song", "la": [1, None]}
    publish(bus, envelope("hello"))

    Worker(AGENT, bus, SyncRunner(lambda _: [event, other])).process_available()

    assert events(bus) == [event.model_dump(mode="json"), other]


def test_a_v1_bus_gets_no_event_for_a_runner_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    bus = V1Bus()
    publish(bus, envelope("hello"))

    assert Worker(AGENT, bus, FailingRunner(LookupError("gone"))).process_available() == 1
    assert events(bus) == []
    assert any("gone" in cause for cause in logged_causes(caplog))


def test_a_v1_bus_with_a_backlog_longer_than_the_limit_loses_none_of_it() -> None:
    bus = V1Bus()
    for n in range(150):
        publish(bus, envelope(str(n)))
    worker = Worker(AGENT, bus, EchoRunner())

    assert [worker.process_available(100), worker.process_available(100)] == [100, 50]
    assert [event["text"] for event in events(bus) if event["event"] == "output"] == [str(n) for n in range(150)]


def test_a_v1_bus_that_fails_is_asked_again_for_the_same_message() -> None:
    bus = V1Bus()
    for text in ("first", "second"):
        publish(bus, envelope(text))
    bus.failing = [ConnectionError("away")]
    worker = Worker(AGENT, bus, SyncRunner(lambda mail: [output(mail, mail.content or "")]))

    with pytest.raises(ConnectionError):
        worker.process_available()

    assert worker.process_available() == 2
    assert [event["text"] for event in events(bus)] == ["first", "second"]


def test_control_on_a_v1_bus_is_passed_over() -> None:
    bus = V1Bus()
    publish(bus, envelope("stop", type="control"))
    publish(bus, envelope("hello"))

    assert Worker(AGENT, bus, EchoRunner()).process_available() == 1


def test_what_is_no_event_counts_as_a_failure_of_the_runner(caplog: pytest.LogCaptureFixture) -> None:
    bus = V1Bus()
    publish(bus, envelope("hello"))
    worker = Worker(AGENT, bus, SyncRunner(lambda _: ["text"]))  # type: ignore[list-item]

    assert [worker.process_available(), worker.process_available()] == [1, 0]
    assert any("events or dicts" in cause for cause in logged_causes(caplog))


def test_each_worker_of_a_v1_bus_has_its_own_cursor() -> None:
    bus = V1Bus()
    publish(bus, envelope("hello"))

    assert [Worker(AGENT, bus, EchoRunner()).process_available() for _ in range(2)] == [1, 1]


# --- on an engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = MemoryBus()
    yield engine
    engine.close()


def test_an_engine_gets_the_run_around_the_events(engine: Engine) -> None:
    send(engine, "hello")

    Worker(AGENT, engine, EchoRunner()).process_available()

    assert kinds(stream(engine)) == ["started", "token", "output", "finished"]


def test_two_workers_of_one_agent_share_the_mail_of_an_engine(engine: Engine) -> None:
    for n in range(10):
        send(engine, str(n), f"c{n}")
    first, second = Worker(AGENT, engine, EchoRunner()), Worker(AGENT, engine, EchoRunner())

    assert (first.process_available(4), second.process_available(), first.process_available()) == (4, 6, 0)


def test_a_worker_leaves_nothing_behind(engine: Engine) -> None:
    send(engine, "hello")

    Worker(AGENT, engine, EchoRunner()).process_available()

    assert engine.call(Workers()) == ()
    assert not any(thread.name.startswith("magent2-worker") for thread in threading.enumerate())


def test_a_failure_is_told_and_the_message_buried_or_tried_again(engine: Engine) -> None:
    send(engine, "hello", "c1")
    assert Worker(AGENT, engine, FailingRunner(LookupError("gone"))).process_available() == 1
    send(engine, "hello", "c2")
    assert Worker(AGENT, engine, FailingRunner(TransientError("busy"))).process_available() == 0

    assert len(dead_letters(engine)) == 1
    assert errors(engine, "c2")[0]["retry_in_s"] > 0
    worker = Worker(AGENT, engine, EchoRunner())
    assert eventually(worker.process_available) == 1
    assert outputs(engine, "c2") == ["hello"]


def test_a_command_is_obeyed_when_it_is_found(engine: Engine) -> None:
    send(engine, "hello")
    command(engine, "stop")

    assert Worker(AGENT, engine, EchoRunner()).process_available() == 1
    assert kinds(stream(engine)) == ["started", "message_received", "stopped"]


def test_the_lease_is_renewed_while_a_run_takes_long(engine: Engine) -> None:
    runner = GatedThreadRunner()
    send(engine, "hello")
    worker = Worker(AGENT, engine, runner, lease_s=0.3)
    done: list[int] = []
    working = threading.Thread(target=lambda: done.append(worker.process_available()))
    working.start()
    eventually(lambda: len(stream(engine)) == 2)
    for _ in range(5):  # the lease runs down and is renewed, again and again
        eventually(lambda: engine.call(Workers())[0].lease_s < 0.22)
        eventually(lambda: engine.call(Workers())[0].lease_s > 0.25)
    runner.gate.set()
    working.join()

    assert done == [1]
    assert stream(engine)[-1]["attempt"] == 1


def test_mail_that_another_worker_holds_is_left_alone(engine: Engine) -> None:
    send(engine, "hello")
    claim_one(engine, "other")

    assert Worker(AGENT, engine, EchoRunner()).process_available() == 0


def test_an_agent_named_like_a_conversation_is_refused(engine: Engine) -> None:
    send(engine, "hello", "Bob")

    with pytest.raises(NameTaken):
        Worker("Bob", engine, EchoRunner()).process_available()


def test_a_worker_makes_its_agent_known(engine: Engine) -> None:
    Worker(AGENT, engine, EchoRunner()).process_available()

    assert engine.call(Describe((f"agent:{AGENT}",)))[0].last == 1


async def test_a_runner_on_a_loop_gets_a_loop_of_its_own(engine: Engine) -> None:
    runner = GatedRunner()
    runner.gate.set()
    send(engine, "hello")

    assert await asyncio.to_thread(Worker(AGENT, engine, runner).process_available) == 1


# --- which runner


def test_without_a_key_the_echo_runner_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    assert isinstance(build_runner(), EchoRunner)


def test_with_a_key_the_sdk_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key")  # pragma: allowlist secret

    assert isinstance(build_runner(), OpenAIAgentsRunner)


def test_the_demo_model_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    assert isinstance(build_runner("demo"), OpenAIAgentsRunner)


def test_the_protocol_of_v1_is_one_method() -> None:
    runners: list[Runner] = [EchoRunner(), SyncRunner(lambda _: [])]

    assert [list(runner.stream_run(envelope(""))) for runner in runners][1] == []
