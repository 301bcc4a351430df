"""Cursors of many sessions, and the list as it changes."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import httpx2
import orjson
import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation, Read, Trim
from magent2.errors import BusUnavailable, Magent2Error
from magent2.gateway.access.auth import TOKEN_IDENTITY
from magent2.gateway.routes.streams import merge_last_event_id
from magent2.gateway.streaming.fanout import Fanout
from magent2.gateway.streaming.reader import MultiSessionReader, cursors_text, parse_cursors
from magent2.gateway.streaming.session_list import CHANGES_KEPT, LiveSessionLists
from magent2.gateway.streaming.sse import EVENT_FORMAT, StreamRequest
from magent2.models.principal import Principal
from magent2.sessions.settings import SessionChange
from magent2.sessions.store import SessionStore
from tests.support.api.sessions import create
from tests.support.worker_fixture import until

R = TypeVar("R")

ANN, BOB = Principal("ann"), Principal("bob")


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a,b:c", "team/one", "50%"], ["ö", "a b"]])
def test_cursors_come_back_as_they_went_out(names: list[str]) -> None:
    cursors: dict[str, int | None] = {name: number for number, name in enumerate(names)}

    assert parse_cursors(cursors_text(cursors).split(",")) == cursors


def test_a_session_without_a_cursor_is_followed_from_the_beginning() -> None:
    assert parse_cursors(["a", "b:", "c:5"]) == {"a": None, "b": None, "c": 5}
    assert cursors_text({"a": None, "c": 5}) == "c:5"


def test_the_header_is_newer_and_the_question_says_which_sessions() -> None:
    asked = {"a": 1, "b": None, "c": 7}

    assert merge_last_event_id(asked, "a:5,b:2,gone:9") == {"a": 5, "b": 2, "c": 7}
    assert merge_last_event_id(asked, None) == merge_last_event_id(asked, " ") == asked


@pytest.mark.parametrize("text", ["a:99999999999999999999", "a:²", " a :1"])
def test_bad_cursors_are_refused(text: str) -> None:
    with pytest.raises(Magent2Error):
        parse_cursors([text])


class Breaking(MemoryBus):
    """Does not answer for some topics."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()

    async def acall(self, operation: Operation[R]) -> R:
        if isinstance(operation, Read) and operation.topic in self.away:
            raise BusUnavailable("away")
        return await super().acall(operation)


async def read(whole: MultiSessionReader) -> list[tuple[str, dict[str, Any]]]:
    """(id, data) of what there is now."""
    text = b"".join([batch.data for batch in await whole.read()]).decode()
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.split("\n\n") if block]
    return [(block.get("id", ""), orjson.loads(block["data"])) for block in blocks]


def whole_of(bus: MemoryBus, **cursors: int | None) -> MultiSessionReader:
    fanout = Fanout(bus, EVENT_FORMAT)
    wanted = [StreamRequest(name, after=after, frame_format=EVENT_FORMAT) for name, after in cursors.items()]
    return MultiSessionReader(bus, fanout, cursors, wanted, TOKEN_IDENTITY)


async def test_a_session_that_cannot_be_read_costs_the_others_nothing() -> None:
    bus = Breaking()
    for name in ("one", "two", "three"):
        await begin(bus, name)
    whole = whole_of(bus, one=0, two=0, three=0)
    bus.away = {"stream:two"}

    first = await read(whole)
    bus.away = set()
    rest = await read(whole)

    assert [(number, data["session_id"]) for number, data in first] == [("one:1,two:0,three:0", "one")]
    assert [number for number, _ in rest] == ["one:1,two:1,three:0", "one:1,two:1,three:1"]
    bus.away = {"stream:one"}
    whole.close()
    await bus.aclose()


async def test_a_cursor_that_is_lost_is_told_for_its_session_alone(bus: MemoryBus) -> None:
    for name in ("one", "two"):
        await begin(bus, name)
    for title in "abc":
        await SessionStore(bus).retitle("one", title)
    bus.call(Trim("stream:one", keep=1))
    whole = whole_of(bus, one=1, two=1)

    lost, rest = await read(whole), await read(whole)

    assert [(number, data["type"], data["data"]) for number, data in lost] == [("", "gap", {"cursor": 1, "floor": 3})]
    assert [(number, data["seq"]) for number, data in rest] == [("one:4,two:1", 4)]
    whole.close()


class Reader:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


async def begin(bus: MemoryBus, name: str, who: Principal = ANN) -> None:
    await SessionStore(bus).configure(name, who, SessionChange("desk", "house"))


async def test_each_owner_sees_their_own_and_an_admin_all(bus: MemoryBus) -> None:
    await begin(bus, "anns")
    await begin(bus, "bobs", BOB)
    lists, reader = LiveSessionLists(bus), Reader()

    shown = {owner: lists.join(owner, reader) for owner in ("ann", "bob", None)}
    await until(lambda: all(one.version for one in shown.values()))

    assert b"bobs" not in shown["ann"].after(0)
    assert b"anns" not in shown["bob"].after(0)
    assert b"anns" in shown[None].after(0)
    assert b"bobs" in shown[None].after(0)
    for one in shown.values():
        lists.leave(one, reader)
    await asyncio.sleep(0)


async def test_who_is_far_behind_is_given_the_whole_list_again(bus: MemoryBus) -> None:
    await begin(bus, "one")
    lists, reader = LiveSessionLists(bus), Reader()
    shown = lists.join(None, reader)
    await until(lambda: shown.version == 1)

    for number in range(CHANGES_KEPT + 1):  # without a pause in which it could look for itself
        shown._publish([{**shown._entries["one"], "title": str(number)}], [])

    assert shown.after(0).startswith(b"event: sessions\n")
    assert shown.after(1).startswith(b"event: sessions\n")
    assert shown.after(shown.version - 2).count(b"event: sessions_changed\n") == 2
    assert shown.after(shown.version) == b""
    lists.leave(shown, reader)
    await asyncio.sleep(0)


async def test_a_stream_of_many_ends_after_as_many_events_as_were_asked_for(client: httpx2.AsyncClient) -> None:
    for name in ("one", "two"):
        await create(client, name)

    async def kinds(count: int) -> list[str]:
        asked: dict[str, Any] = {"session": ["one:0", "two:0", "never"], "max_events": count}
        return re.findall(r"^event: (.*)$", (await client.get("/api/stream", params=asked)).text, re.M)

    assert await kinds(1) == ["end", "end"]
    assert await kinds(2) == ["end", "session", "end"]
    assert sorted(await kinds(4)) == ["end", "end", "session", "session", "sessions"]
    assert 'reason":"max_events"' in (await client.get("/api/stream", params={"max_events": 1})).text
