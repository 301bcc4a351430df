from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Compact, Delete, Erase, Trim
from magent2.bus.records import NewRecord
from magent2.gateway.app import create_app
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.streaming.fanout import TAIL_MAX_FRAMES
from magent2.gateway.streaming.sse import CURSOR_MAX
from tests.support.engines import spoil_next_record
from tests.support.gateway import Event, app_client, last_id, parse_frames, streams_open

TOPIC = "stream:one"


def publish(bus: MemoryBus, *kinds: str, **fields: Any) -> None:
    for kind in kinds:
        event = {"event": kind, "conversation_id": "one", "text": kind, **fields}
        bus.call(Append(records=(NewRecord(TOPIC, event),)))


async def follow(client: httpx2.AsyncClient, **asked: Any) -> list[Event]:
    """All of a stream that ends."""
    headers = {"last-event-id": asked.pop("last_event_id")} if "last_event_id" in asked else {}
    answer = await client.get("/stream/one", params=asked, headers=headers)
    assert answer.status_code == 200
    assert answer.text.startswith("retry: 1000\n\n")
    return parse_frames(answer.text)


def seqs(events: list[Event]) -> list[int | None]:
    return [event.id for event in events]


async def test_a_stream_shows_every_record_with_its_seq(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    publish(bus, "user_message", "token", "output")

    events = await follow(client, max_events=3)

    assert [(event.id, event.kind, event.data.get("seq")) for event in events[:3]] == [
        (1, "user_message", 1),
        (2, "token", 2),
        (3, "output", 3),
    ]
    assert (events[3].id, events[3].kind, events[3].data["reason"]) == (None, "end", "max_events")


@pytest.mark.parametrize("asked", [{"since": 2}, {"last_event_id": "2"}, {"since": 0, "last_event_id": "2"}])
async def test_a_stream_resumes_right_after_the_cursor(
    bus: MemoryBus, client: httpx2.AsyncClient, asked: dict[str, Any]
) -> None:
    publish(bus, "token", "token", "token", "output")

    assert seqs(await follow(client, max_events=2, **asked)) == [3, 4, None]


async def test_whatever_the_cuts_the_pieces_are_the_whole(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    publish(bus, *["token"] * 50)
    seen: list[int | None] = []
    cursor = 0

    while cursor < 50:
        events = await follow(client, since=cursor, max_events=7 if cursor < 42 else 50 - cursor)
        seen += seqs(events[:-1])
        cursor = int(seen[-1] or 0)

    assert seen == list(range(1, 51))


async def test_what_comes_while_the_reader_waits_is_told_to_all_of_them(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    readers = [asyncio.create_task(follow(client, max_events=3)) for _ in range(5)]
    await streams_open(app, 5)

    publish(bus, "user_message")
    await asyncio.sleep(0)
    publish(bus, "token", "output")

    for reader in readers:
        assert seqs(await reader) == [1, 2, 3, None]


async def test_a_cursor_below_the_floor_is_a_gap_and_the_stream_goes_on_after_it(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    publish(bus, *["token"] * 10)
    bus.call(Trim(TOPIC, keep=3))

    events = await follow(client, since=2, max_events=3)

    assert (events[0].id, events[0].kind) == (None, "gap")
    assert (events[0].data["cursor"], events[0].data["floor"]) == ("2", 7)
    assert seqs(events[1:-1]) == [8, 9, 10]


async def test_a_cursor_beyond_the_end_is_a_gap_too(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    publish(bus, "token", "output")

    events = await follow(client, last_event_id="99", max_events=2)

    assert [event.kind for event in events] == ["gap", "token", "output", "end"]


async def test_without_a_cursor_a_stream_begins_at_the_floor_without_a_gap(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    publish(bus, *["token"] * 10)
    bus.call(Trim(TOPIC, keep=3))

    assert seqs(await follow(client, max_events=3)) == [8, 9, 10, None]


async def test_compacted_and_erased_records_leave_holes_and_no_gap(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    for number in range(3):
        bus.call(Append(records=(NewRecord(TOPIC, {"event": "token", "text": str(number)}, draft="m"),)))
    bus.call(Append(records=(NewRecord(TOPIC, {"event": "output", "text": "012"}, closes="m"),)))
    publish(bus, "user_message", "output")
    bus.call(Compact(TOPIC, min_age_s=0))
    bus.call(Erase(TOPIC, (5,)))

    assert seqs(await follow(client, since=1, max_events=2)) == [4, 6, None]


async def test_a_compaction_is_no_gap_for_a_reader_that_is_connected(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    """Whether or not the reader has seen the tokens, it gets the whole text and everything after it."""
    reader = asyncio.create_task(follow(client, kinds="output,user_message", max_events=2))
    await streams_open(app, 1)
    tokens = [NewRecord(TOPIC, {"event": "token", "text": str(number)}, draft="m") for number in range(3)]
    bus.call(Append(records=tuple(tokens)))
    await asyncio.sleep(0)
    bus.call(Append(records=(NewRecord(TOPIC, {"event": "output", "text": "012"}, closes="m"),)))

    assert bus.call(Compact(TOPIC, min_age_s=0)).dropped == 3
    publish(bus, "user_message")

    assert [(event.id, event.kind) for event in await reader] == [(4, "output"), (5, "user_message"), (None, "end")]


async def test_kinds_are_filtered_and_the_cursor_still_moves(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    publish(bus, "token", "output", "token", "token")
    reader = asyncio.create_task(client.get("/stream/one", params={"kinds": "output,run"}))
    await streams_open(app, 1)
    publish(bus, "token")
    await streams_open(app, 1)
    bus.call(Delete((TOPIC,), conversation="one"))

    text = (await reader).text

    assert [event.kind for event in parse_frames(text)] == ["output", "end"]
    assert (last_id(text) or 0) >= 4


async def test_a_filter_counts_what_it_shows(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    publish(bus, "token", "output", "token", "output", "token")

    events = await follow(client, kinds="output", max_events=2)

    assert seqs(events) == [2, 4, None]


async def test_a_deletion_ends_the_stream_and_a_reconnect_gets_nothing(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    publish(bus, "token")
    reader = asyncio.create_task(follow(client))
    await streams_open(app, 1)

    bus.call(Delete((TOPIC,), conversation="one"))

    events = await reader
    assert (events[-1].id, events[-1].kind, events[-1].data["reason"]) == (None, "end", "deleted")
    assert (await client.get("/stream/one")).status_code == 204


async def test_an_unknown_conversation_is_waited_for(bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient) -> None:
    reader = asyncio.create_task(follow(client, max_events=1))
    await streams_open(app, 1)

    publish(bus, "user_message")

    assert seqs(await reader) == [1, None]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"since": "-1"}, "bad_cursor"),
        ({"since": "x"}, "bad_cursor"),
        ({"since": ""}, "bad_cursor"),
        ({"since": str(CURSOR_MAX + 1)}, "bad_cursor"),
        ({"since": "9" * 70}, "bad_parameter"),
        ({"kinds": "tokens"}, "unknown_kind"),
        ({"kinds": ""}, "unknown_kind"),
        ({"max_events": "0"}, "bad_parameter"),
        ({"max_events": "many"}, "bad_parameter"),
    ],
)
async def test_a_bad_question_is_refused_by_name(client: httpx2.AsyncClient, asked: dict[str, str], code: str) -> None:
    answer = await client.get("/stream/one", params=asked)

    assert (answer.status_code, answer.json()["code"]) == (422, code)


@pytest.fixture
def client_of_two(bus: MemoryBus, client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Where two records are on the stream."""
    publish(bus, "token", "output")
    return client


def is_number(cursor: str) -> bool:
    return cursor.isascii() and cursor.isdigit()


CURSORS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1) | st.integers().map(str)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cursor=CURSORS.filter(lambda text: not (is_number(text) and int(text) == 2)))  # after 2, the stream waits for 3
async def test_no_header_upsets_the_stream(client_of_two: httpx2.AsyncClient, cursor: str) -> None:
    answer = await client_of_two.get("/stream/one", params={"max_events": 1}, headers={"last-event-id": cursor})

    plain = is_number(cursor)
    if plain and int(cursor) <= 1:
        assert seqs(parse_frames(answer.text))[0] == int(cursor) + 1
    elif plain and 2 < int(cursor) <= CURSOR_MAX and len(cursor) <= 16:
        assert parse_frames(answer.text)[0].kind == "gap"
    elif not plain:
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor")


async def test_an_empty_header_is_no_cursor(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    publish(bus, "token")

    assert seqs(await follow(client, last_event_id="", max_events=1)) == [1, None]


async def test_more_streams_than_there_is_room_for_are_refused(bus: MemoryBus) -> None:
    app = create_app(bus, limits=GatewayLimits(streams_max=1))
    async with app_client(app) as client:
        first = asyncio.create_task(follow(client, max_events=1))
        await streams_open(app, 1)

        second = await client.get("/stream/two")

        assert (second.status_code, second.json()["code"]) == (503, "too_many_streams")
        assert second.headers["retry-after"] == "1"
        publish(bus, "token")
        assert seqs(await first) == [1, None]
        assert seqs(await follow(client, max_events=1)) == [1, None]


@pytest.mark.parametrize("live", [True, False])
async def test_a_record_that_cannot_be_read_is_told_and_passed_over(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient, live: bool
) -> None:
    publish(bus, "token")
    reading = asyncio.create_task(follow(client, max_events=3)) if live else None
    if live:
        await streams_open(app, 1)
    spoil_next_record(bus, TOPIC, bus._db.connection)
    publish(bus, "output")

    events = await (reading or follow(client, max_events=3))

    assert seqs(events) == [1, 2, 3, None]
    assert (events[1].kind, events[1].data["code"]) == ("error", "malformed_record")


async def test_a_reader_that_is_far_behind_and_one_that_is_not_see_the_same(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    many = TAIL_MAX_FRAMES * 2
    publish(bus, "token")
    live = asyncio.create_task(follow(client, since=1, max_events=many))
    await streams_open(app, 1)
    bus.call(Append(records=tuple(NewRecord(TOPIC, {"event": "token"}) for _ in range(900))))
    late = asyncio.create_task(follow(client, since=1, max_events=many))
    for start in range(900, many, 500):
        count = min(500, many - start)
        bus.call(Append(records=tuple(NewRecord(TOPIC, {"event": "token"}) for _ in range(count))))
        await asyncio.sleep(0)

    expected = [*range(2, many + 2), None]
    assert seqs(await live) == expected
    assert seqs(await late) == expected


async def test_a_drain_sends_what_was_just_written_before_it_ends_the_streams(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    publish(bus, "token")
    paths = ("/stream/one", "/stream/one?kinds=run", "/stream/one?max_events=5", "/api/stream?session=one:0")
    readers = [asyncio.create_task(client.get(path)) for path in paths]
    await streams_open(app, len(readers))

    publish(bus, "run")  # the notification comes in a later step of the loop
    app.state.services.streams.drain()

    for reader in readers:
        text = (await reader).text
        assert re.findall(r"^event: (.*)$", text, re.M)[-2:] == ["run", "end"]
        assert '"reason":"drain"' in text
