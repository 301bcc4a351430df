from __future__ import annotations

from collections.abc import Mapping

import httpx2
import pytest

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, SetHead, Trim
from magent2.bus.records import NewRecord
from magent2.client import api_requests
from magent2.errors import AddressError
from magent2.mail.delivery import SendOptions, deliver
from magent2.models.envelope import MessageEnvelope
from tests.support.gateway import message


@pytest.fixture
def client(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """A client that asks for records instead of events."""
    client.params = httpx2.QueryParams({"format": "record"})
    return client


async def send(client: httpx2.AsyncClient, *conversations: str) -> None:
    for conversation in conversations:
        assert (await client.post("/send", json=message(f"to {conversation}", conversation))).status_code == 200


async def test_conversations_are_listed_page_by_page(client: httpx2.AsyncClient) -> None:
    await send(client, "a", "b", "c")
    seen: list[str] = []
    before: str | None = None

    while True:
        asked = {"limit": "2", **({"before": before} if before else {})}
        page = (await client.get("/api/sdk/sessions", params=asked)).json()
        seen += [one["conversation_id"] for one in page["conversations"]]
        before = page["next"]
        if before is None:
            break

    assert sorted(seen) == ["a", "b", "c"]


async def test_a_conversation_shows_its_head(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await send(client, "a")
    head = {"run_status": "finished", "usage": {"total_tokens": 7}}
    bus.call(Append(records=(NewRecord("stream:a", {"event": "run"}),), heads=(SetHead("stream:a", head),)))

    shown = (await client.get("/api/sdk/session/a")).json()

    assert shown.pop("last_active_at").endswith("Z")
    assert shown == {
        "conversation_id": "a",
        "last_seq": 2,
        "active_agent": "Ada",
        "title": "to a",
        "run_status": "finished",
        "usage": {},
        "last_run_usage": {"total_tokens": 7},
    }


async def test_conversations_are_listed_by_owner(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await send(client, "a", "b")
    bus.call(Append(records=(NewRecord("stream:a", {}),), heads=(SetHead("stream:a", {"owner": "ann"}),)))

    listed = (await client.get("/api/sdk/sessions", params={"owner": "ann"})).json()["conversations"]

    assert [one["conversation_id"] for one in listed] == ["a"]


HEADS: Mapping[str, dict[str, object]] = {
    "asks": {"run_status": "running", "paused": 2},
    "runs": {"run_status": "running"},
    "runs too": {"run_status": "running"},
    "failed": {"run_status": "failed"},
    "finished": {"run_status": "finished"},
}


async def set_heads(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await send(client, *HEADS)
    for name, head in HEADS.items():
        topic = f"stream:{name}"
        bus.call(Append(records=(NewRecord(topic, {"event": "run"}),), heads=(SetHead(topic, head),)))


@pytest.mark.parametrize(
    ("state", "names"), [("waiting", {"asks"}), ("running", {"runs", "runs too"}), ("failed", {"failed"})]
)
async def test_conversations_are_filtered_by_the_state_of_their_last_run(
    bus: MemoryBus, client: httpx2.AsyncClient, state: str, names: set[str]
) -> None:
    await set_heads(bus, client)

    listed = (await client.get("/api/sdk/sessions", params={"state": state})).json()["conversations"]

    assert {one["conversation_id"] for one in listed} == names


async def test_a_filtered_list_has_pages(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await set_heads(bus, client)
    asked = {"state": "running", "limit": "1"}

    first = (await client.get("/api/sdk/sessions", params=asked)).json()
    second = (await client.get("/api/sdk/sessions", params={**asked, "before": first["next"]})).json()

    pages = [one["conversation_id"] for page in (first, second) for one in page["conversations"]]
    assert sorted(pages) == ["runs", "runs too"]


async def test_conversations_are_counted_by_the_state_of_their_last_run(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await set_heads(bus, client)

    counts = (await client.get("/api/sdk/sessions/counts")).json()

    assert counts == {"waiting": 1, "running": 2, "failed": 1, "complete": True}


@pytest.mark.parametrize("before", ["", "x", "bnVsbA", "WzEsMl0", "!!!!", "W10"])
async def test_a_cursor_that_is_none_of_ours_is_refused(client: httpx2.AsyncClient, before: str) -> None:
    answer = await client.get("/api/sdk/sessions", params={"before": before})

    assert (answer.status_code, answer.json()["code"]) == (422, "bad_cursor")


async def test_an_unknown_conversation_is_404_and_a_deleted_one_410(client: httpx2.AsyncClient) -> None:
    await send(client, "a")
    assert (await client.delete("/api/sdk/session/a")).status_code == 204

    for path in ("/api/sdk/session/{}", "/api/sdk/session/{}/events"):
        unknown, gone = await client.get(path.format("never")), await client.get(path.format("a"))
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_session")
        assert (gone.status_code, gone.json()["code"]) == (410, "conversation_deleted")
    assert (await client.delete("/api/sdk/session/never")).status_code == 404
    assert (await client.delete("/api/sdk/session/a")).status_code == 410


async def test_an_id_with_a_slash_is_found(client: httpx2.AsyncClient) -> None:
    await send(client, "team/one two")

    assert (await client.get("/api/sdk/session/team%2Fone%20two")).json()["last_seq"] == 1
    page = (await client.get("/api/sdk/session/team%2Fone%20two/events")).json()
    assert page["conversation_id"] == "team/one two"


async def test_events_are_read_page_by_page(client: httpx2.AsyncClient) -> None:
    await send(client, "a", "a", "a")

    first = (await client.get("/api/sdk/session/a/events", params={"limit": 2})).json()
    rest = (await client.get("/api/sdk/session/a/events", params={"since": first["next_since"]})).json()

    assert [event["seq"] for event in first["events"]] == [1, 2]
    assert (first["next_since"], first["has_more"]) == (2, True)
    assert [event["seq"] for event in rest["events"]] == [3]
    assert (rest["next_since"], rest["has_more"]) == (3, False)


async def test_a_cursor_below_the_floor_is_gone_and_one_beyond_the_end_is_bad(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await send(client, *["a"] * 5)
    bus.call(Trim("stream:a", keep=2))

    below = await client.get("/api/sdk/session/a/events", params={"since": 1})
    beyond = await client.get("/api/sdk/session/a/events", params={"since": 9})
    all_there_is = await client.get("/api/sdk/session/a/events")

    assert (below.status_code, below.json()["code"], below.json()["floor"]) == (410, "cursor_gone", 3)
    assert (beyond.status_code, beyond.json()["code"]) == (422, "bad_cursor")
    assert [event["seq"] for event in all_there_is.json()["events"]] == [4, 5]


@pytest.mark.parametrize("body", [None, {}, {"agent": "Ada"}, {"sender": "user:bob"}])
async def test_stopping_sends_a_command_to_the_agent(
    bus: MemoryBus, client: httpx2.AsyncClient, body: dict[str, str] | None
) -> None:
    await send(client, "a")

    answer = await client.post("/api/sdk/session/a/stop", json=body)

    (command,) = bus.read("control:Ada")
    assert answer.status_code == 202
    assert answer.json() == {"status": "accepted", "agent": "Ada", "envelope_id": command.payload["id"], "seq": 1}
    assert (command.payload["type"], command.payload["content"]) == ("control", "stop")


async def test_stopping_needs_an_agent_and_a_conversation(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    note = MessageEnvelope(conversation_id="quiet", sender="user:ann", recipient="chat:quiet", content="hm")
    await deliver(Log(bus), note, SendOptions(with_records=(NewRecord("stream:quiet", {"event": "user_message"}),)))

    nobody = await client.post("/api/sdk/session/quiet/stop")
    unknown = await client.post("/api/sdk/session/never/stop")
    bad = await client.post("/api/sdk/session/quiet/stop", json={"agent": 7})

    assert (nobody.status_code, nobody.json()["code"]) == (409, "no_active_agent")
    assert unknown.status_code == 404
    assert bad.status_code == 422


@pytest.mark.parametrize("ending", ["events", "usage", "approvals"])
async def test_an_encoded_slash_belongs_to_the_id_and_a_plain_one_does_not(
    client: httpx2.AsyncClient, ending: str
) -> None:
    await send(client, "a", f"a/{ending}", f"a%2F{ending}")
    path = f"/api/sdk/session/a%2F{ending}"

    shown = await client.get(path)
    plain = await client.get(f"/api/sdk/session/a/{ending}")
    escaped = await client.get(f"/api/sdk/session/a%252F{ending}")
    retitled = await client.patch(f"/api/sdk/session/a/{ending}", json={"title": "mine"})
    deleted = await client.delete(path)

    assert shown.json()["conversation_id"] == f"a/{ending}"
    assert escaped.json()["conversation_id"] == f"a%2F{ending}"
    assert "a" in (plain.json().get("conversation_id"), plain.json().get("session_id"))
    assert (retitled.status_code, retitled.headers["allow"]) == (405, "GET")
    assert deleted.status_code == 204
    assert (await client.get(path)).status_code == 410
    assert (await client.get("/api/sdk/session/a")).status_code == 200
    assert (await client.get("/api/sdk/session/a/b")).json()["code"] == "not_found"


@pytest.mark.parametrize("name", [".", ".."])
async def test_an_id_that_browsers_remove_from_a_path_is_refused(client: httpx2.AsyncClient, name: str) -> None:
    sent = await client.post("/send", json=message("hello", name))
    created = await client.post("/api/sdk/session/create", json={"session_id": name})

    assert (sent.status_code, created.status_code) == (422, 422)
    assert "browsers remove it from a path" in sent.json()["detail"]
    with pytest.raises(AddressError):
        api_requests.conversation(name)
