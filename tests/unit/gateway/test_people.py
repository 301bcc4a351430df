"""People and places over HTTP: what one may do for oneself, and what admins do for the place."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, PutBlob
from magent2.bus.records import NewRecord
from magent2.connectors.builtin import message_record
from magent2.connectors.interface import Attachment, OutgoingMessage
from magent2.connectors.outbox import queue_records
from magent2.directory.connectors import find_connector
from magent2.gateway.app import create_app
from magent2.sessions.store import create_session
from tests.support.directory_fixture import channel_messages, inbox, open_channel, populate_directory
from tests.support.gateway import app_client
from tests.support.keys import ACCESS, ADMIN, KeyHolder, create_key_holder
from tests.support.sending import Facts

Ask = Any


class Site:
    def __init__(self, bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder, bob: KeyHolder) -> None:
        self.bus = bus
        self._client = client
        self.ann, self.bob = ann, bob

    async def ask(self, who: KeyHolder | None, method: str, path: str, **body: Any) -> tuple[int, Any]:
        headers = ADMIN if who is None else who.headers
        answer = await self._client.request(method, path, json=body or None, headers=headers)
        return answer.status_code, answer.json()

    async def file(self, who: KeyHolder, session: str, sha256: str) -> httpx2.Response:
        return await self._client.get(f"/api/sdk/session/{session}/files/{sha256}", headers=who.headers)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    bus = MemoryBus()
    app = create_app(bus, access=ACCESS)
    populate_directory(bus)
    async with app_client(app) as client:
        yield Site(bus, client, await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:bob"))
    app.state.services.streams.close()
    await bus.aclose()


async def test_admins_make_change_and_remove_users(site: Site) -> None:
    status, dan = await site.ask(None, "POST", "/api/users", id="dan", nametag="dan", agent="Dee")
    assert (status, dan["agent"]) == (200, "Dee")
    assert (await site.ask(None, "POST", "/api/users", id="dan", connector="web", target="x"))[1]["target"] == "x"
    assert (await site.ask(None, "POST", "/api/users", id="dana", nametag="dan"))[0] == 409
    assert (await site.ask(None, "POST", "/api/users", id="dana", nametag="no tag"))[0] == 422
    assert (await site.ask(None, "DELETE", "/api/users/dan"))[1]["removed"] is True
    assert [user["id"] for user in (await site.ask(None, "GET", "/api/users"))[1]["users"]] == [
        "ann", "bob", "cat", "dan",
    ]  # fmt: skip


async def test_everybody_looks_after_their_own_friends(site: Site) -> None:
    assert (await site.ask(site.ann, "POST", "/api/friends", nametag="@bob", action="remove"))[1]["status"] == "apart"
    status, problem = await site.ask(site.bob, "POST", "/api/friends", nametag="@ann", action="request")
    assert (status, "7 days" in problem["detail"]) == (422, True)
    assert (await site.ask(site.ann, "POST", "/api/friends", nametag="@bob", action="request"))[1]["asked_by_you"]
    assert (await site.ask(site.bob, "POST", "/api/friends", nametag="@ann", action="accept"))[1]["status"] == "friends"
    friends = (await site.ask(site.bob, "GET", "/api/friends"))[1]["friends"]
    assert [(friend["nametag"], friend["status"]) for friend in friends] == [("ann", "friends")]


async def test_a_swarm_is_its_owners(site: Site) -> None:
    made = await site.ask(site.bob, "POST", "/api/swarms", nametag="desk", action="create", agent="Desk")
    assert (made[0], made[1]["owner"]) == (200, "bob")
    assert (await site.ask(site.bob, "POST", "/api/swarms", nametag="desk", action="let_in", user="ann"))[1][
        "guests"
    ] == ["ann"]
    assert (await site.ask(site.ann, "POST", "/api/swarms", nametag="desk", action="open"))[0] == 404
    assert (await site.ask(site.ann, "GET", "/api/swarms/desk/contacts"))[0] == 404
    assert (await site.ask(site.ann, "GET", "/api/swarms"))[1] == {"swarms": []}
    assert (await site.ask(site.bob, "GET", "/api/swarms/desk/contacts"))[1] == {"contacts": []}
    assert (await site.ask(site.bob, "POST", "/api/swarms", nametag="desk", action="block"))[0] == 422
    assert (await site.ask(None, "POST", "/api/swarms", nametag="desk", action="remove"))[1]["removed"] is True


async def test_only_members_read_a_channel(site: Site) -> None:
    open_channel(site.bus)
    from magent2.tools.messaging.directory_messages import ChannelSend
    from magent2.tools.sending import definition_of

    facts = Facts(site.bus, "one", "Ada", principal="user:ann")
    await definition_of(ChannelSend()).run({"channel": "launch", "text": "we are live"}, facts)

    told = (await site.ask(site.bob, "GET", "/api/channels/launch/messages"))[1]
    assert [(item["from"], item["text"], item["told"]) for item in told["messages"]] == [
        ("ann", "we are live", ["bob"])
    ]
    dan = await create_key_holder(site.bus, "user:dan")
    assert (await site.ask(dan, "GET", "/api/channels/launch/messages"))[0] == 404
    assert (await site.ask(dan, "GET", "/api/channels"))[1] == {"channels": []}
    assert (await site.ask(None, "POST", "/api/channels", name="launch", action="leave", username="cat"))[0] == 200
    assert (await site.ask(None, "POST", "/api/channels", name="launch", action="join", username="x"))[0] == 422
    assert len(inbox(site.bus, "Bo")) == len(channel_messages(site.bus)) == 1


async def test_connectors_are_set_up_without_showing_their_secret(site: Site) -> None:
    secret = "a-secret-for-tests-only"  # pragma: allowlist secret
    config = {"url": "https://example.com/in", "secret": secret}
    status, made = await site.ask(None, "POST", "/api/connectors", id="hook", kind="webhook", config=config)
    assert (status, made["capabilities"]["takes_key"]) == (200, False)
    bad = {"url": "http://169.254.169.254/", "secret": secret}
    assert (await site.ask(None, "POST", "/api/connectors", id="bad", kind="webhook", config=bad))[0] == 422
    listed = (await site.ask(None, "GET", "/api/connectors"))[1]
    assert [known["id"] for known in listed["connectors"]] == ["web", "hook"]
    assert secret not in str(listed)
    assert (await site.ask(None, "DELETE", "/api/connectors/hook"))[0] == 200


async def test_what_is_stuck_in_an_outbox_is_seen_and_decided(site: Site) -> None:
    await site.ask(None, "POST", "/api/connectors", id="out", kind="console")
    message = OutgoingMessage("m-1", "out", "", "one", "Ada", "hello", "2026-01-01T00:00:00+00:00")
    site.bus.call(Append(records=queue_records(message, run_sync(site.bus, find_connector, "out").state)))
    site.bus.call(Append(records=(NewRecord("outbox:out", {"event": "unknown", "of": "m-1", "reason": "lost"}),)))

    items = (await site.ask(None, "GET", "/api/outbox?state=unknown"))[1]["items"]
    assert [(item["id"], item["reason"]) for item in items] == [("m-1", "lost")]
    assert (await site.ask(None, "POST", "/api/outbox/out/m-1/retry"))[1]["state"] == "waiting"
    assert (await site.ask(None, "DELETE", "/api/outbox/out/m-1"))[0] == 422
    assert (await site.ask(None, "DELETE", "/api/outbox/out/m-2"))[0] == 404


def attach(bus: MemoryBus, session: str, name: str, media_type: str, data: bytes) -> str:
    bus.call(PutBlob(data))
    attachment = Attachment(name, hashlib.sha256(data).hexdigest(), media_type, len(data))
    message = OutgoingMessage(
        attachment.sha256[:16], "web", "", session, "Ada", "", "2026-01-01T00:00:00+00:00", attachments=(attachment,)
    )
    bus.call(Append(records=(message_record(message, "run-1"),)))
    return attachment.sha256


async def test_a_sent_file_is_its_owners_to_keep(site: Site) -> None:
    sha256 = attach(site.bus, "one", 'no\r\nte "x" ü.txt', "text/plain", b"a note")

    answer = await site.file(site.ann, "one", sha256)

    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"a note", "text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith('attachment; filename="no__te _x_ _.txt"')
    assert (await site.file(site.bob, "one", sha256)).status_code == 404


async def test_what_could_run_is_served_as_bytes(site: Site) -> None:
    sha256 = attach(site.bus, "one", "page.html", "text/html", b"<script>alert(1)</script>")

    answer = await site.file(site.ann, "one", sha256)

    assert answer.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in answer.headers["content-security-policy"]


async def test_only_what_the_session_itself_shows_is_a_file_of_it(site: Site) -> None:
    run_sync(site.bus, create_session, "bobs", "user:bob")
    sha256 = attach(site.bus, "bobs", "secret.txt", "text/plain", b"bob's own")

    assert (await site.file(site.ann, "one", sha256)).status_code == 404
    assert (await site.file(site.ann, "bobs", sha256)).status_code == 404
    assert (await site.file(site.bob, "bobs", sha256)).status_code == 200
    assert (await site.file(site.ann, "one", "0" * 64)).json()["code"] == "unknown_file"
    assert (await site.file(site.ann, "one", "../etc")).status_code in (404, 422)
