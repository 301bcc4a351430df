"""The auditor of HTTP notices what it is there for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.records import Record
from magent2.runner.echo import EchoRunner
from magent2.sessions.store import SessionStore
from magent2.worker.worker import Worker
from tests.support.audit import whole_log
from tests.support.gateway import asgi_client
from tests.support.http_client.audit import SeenEvent, acceptance_findings, stream_findings
from tests.support.http_client.clients import Frames
from tests.support.run_audit import run_findings
from tests.support.worker_fixture import AGENT, envelope

Events = list[SeenEvent]
Log = list[Record]
CUT = 4


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


@pytest.fixture
async def sent(bus: MemoryBus) -> list[tuple[str, str]]:
    """Two messages, answered: (envelope id, text)."""
    sent = []
    for text in ("first one", "second"):
        delivered = await SessionStore(bus).post(envelope(text))
        sent.append((delivered.envelope_id, text))
        Worker(AGENT, bus, EchoRunner()).process_available()
    return sent


async def read(client: httpx2.AsyncClient, count: int, **headers: str) -> Events:
    response = await client.get(f"/stream/one?max_events={count}", headers=headers)
    frames = Frames()
    return [event for line in response.text.split("\n") if (event := frames.take(line)) is not None]


@pytest.mark.parametrize(
    ("drift", "words"), [(0, None), (1, f"event {CUT + 1} is missing"), (-1, f"event {CUT} came 2 times")]
)
async def test_a_client_that_resumes_one_event_off_is_found(
    bus: MemoryBus, sent: list[tuple[str, str]], drift: int, words: str | None
) -> None:
    log = whole_log(bus, "stream:one")
    async with asgi_client(bus) as client:
        seen = await read(client, CUT)
        cursor = {"Last-Event-ID": str(seen[-1].seq + drift)}
        seen += await read(client, len(log) - CUT - drift, **cursor)

    assert stream_findings(log, seen) == ([] if words is None else [words])


def as_seen(log: Log) -> Events:
    return [SeenEvent(record.seq, record.payload["event"], {**record.payload, "seq": record.seq}) for record in log]


BREAKAGES: dict[str, Callable[[Events], Events]] = {
    "event 3 is missing": lambda events: events[:2] + events[3:],
    "event 3 came 2 times": lambda events: [*events[:3], *events[2:]],
    "event 3 came after 4": lambda events: [*events[:2], events[3], events[2], *events[4:]],
    "event 99 (gap) is not in the log": lambda events: [*events, SeenEvent(99, "gap", {})],
    "event 3 was called 'gap'": lambda events: [replace(e, kind="gap") if e.seq == 3 else e for e in events],
    "event 3 differs": lambda events: [replace(e, data={**e.data, "text": "x"}) if e.seq == 3 else e for e in events],
}


@pytest.mark.parametrize("words", BREAKAGES)
async def test_a_stream_that_is_not_the_log_is_found(bus: MemoryBus, sent: list[tuple[str, str]], words: str) -> None:
    log = whole_log(bus, "stream:one")

    findings = stream_findings(log, BREAKAGES[words](as_seen(log)))

    assert stream_findings(log, as_seen(log)) == []
    assert any(finding.startswith(words) for finding in findings), findings


async def test_a_reader_that_starts_late_need_not_see_earlier_events(
    bus: MemoryBus, sent: list[tuple[str, str]]
) -> None:
    log = whole_log(bus, "stream:one")

    assert stream_findings(log, as_seen(log)[3:], since=3) == []
    assert stream_findings(log, as_seen(log)[2:], since=3)


async def test_a_doubled_answer_is_found(bus: MemoryBus, sent: list[tuple[str, str]]) -> None:
    stream, history = whole_log(bus, "stream:one"), whole_log(bus, "history:one")
    place = next(n for n, record in enumerate(stream) if record.payload["event"] == "output")
    doubled = [*stream[: place + 1], *stream[place:]]
    doubled = [replace(record, seq=n, id=f"@{n}") for n, record in enumerate(doubled, start=1)]

    assert run_findings(sent, stream, history) == []
    assert f"{sent[0][0]} was answered 2 times" in run_findings(sent, doubled, history)


async def test_a_promise_to_a_sender_that_the_log_does_not_keep_is_found(
    bus: MemoryBus, sent: list[tuple[str, str]]
) -> None:
    log = whole_log(bus, "stream:one")
    accepted = [(r.payload["message_id"], r.seq) for r in log if r.payload["event"] == "user_message"]
    (first, at), second = accepted

    assert acceptance_findings(accepted, log) == []
    assert acceptance_findings([(first, at + 1), second], log) == [f"{first} was accepted at {at + 1} and is not there"]
    assert acceptance_findings(accepted[:1], log) == [f"{second[0]} is shown and was never accepted"]
    assert acceptance_findings(accepted, [*log, log[at - 1]]) == [f"{first} is shown 2 times"]
    assert "out of order" in acceptance_findings([second, (first, at)], log)[0]
