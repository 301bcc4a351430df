"""Conformance cases of the directory routes, and the entities that they need."""

from __future__ import annotations

import hashlib
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, PutBlob
from magent2.bus.records import NewRecord
from magent2.connectors.builtin import message_record
from magent2.connectors.interface import Attachment, OutgoingMessage
from magent2.connectors.outbox import drop_item, queue_records
from magent2.directory.channels import create_channel, new_member
from magent2.directory.connectors import Capabilities, register_connector
from magent2.directory.swarms import create_swarm
from magent2.directory.users import create_user
from tests.support.api.cases import JSON, Case, Route

FILE = b"a note"
SHA256 = hashlib.sha256(FILE).hexdigest()
AT = "2026-01-01T00:00:00+00:00"
DROPPED = "s0"  # dropped in advance, because a test process may get only the error cases

FILES: Route = ("GET", "/api/sdk/session/{session_id}/files/{sha256}")
USERS: Route = ("GET", "/api/users")
PUT_USER: Route = ("POST", "/api/users")
DROP_USER: Route = ("DELETE", "/api/users/{user}")
FRIENDS: Route = ("GET", "/api/friends")
BEFRIEND: Route = ("POST", "/api/friends")
SWARMS: Route = ("GET", "/api/swarms")
PUT_SWARM: Route = ("POST", "/api/swarms")
CONTACTS: Route = ("GET", "/api/swarms/{nametag}/contacts")
CHANNELS: Route = ("GET", "/api/channels")
PUT_CHANNEL: Route = ("POST", "/api/channels")
MESSAGES: Route = ("GET", "/api/channels/{name}/messages")
CONNECTORS: Route = ("GET", "/api/connectors")
PUT_CONNECTOR: Route = ("POST", "/api/connectors")
DROP_CONNECTOR: Route = ("DELETE", "/api/connectors/{connector}")
OUTBOX: Route = ("GET", "/api/outbox")
AGAIN: Route = ("POST", "/api/outbox/{connector}/{item}/retry")
FORGET: Route = ("DELETE", "/api/outbox/{connector}/{item}")


def settle(bus: Engine) -> None:
    """Create users, a channel, a swarm, an outbox with failed messages, and a file sent in session `mine`.

    What a case drops is created here too. A case that creates it may run later, or in another process.
    """
    for name in ("ann", "bob", "cat", "eve"):
        run_sync(bus, create_user, name, name, {"agent": "general"})
    run_sync(bus, create_channel, "launch", new_member("ann", "ann", "general"))
    run_sync(bus, create_swarm, "desk", "ann", "support")
    connector = run_sync(bus, register_connector, "out", "console", Capabilities())
    run_sync(bus, register_connector, "spare", "console", Capabilities())
    for key in ("s1", "s2", DROPPED):
        bus.call(Append(records=queue_records(OutgoingMessage(key, "out", "", "mine", "general", key, AT), connector)))
        bus.call(Append(records=(NewRecord("outbox:out", {"event": "dead", "of": key, "reason": "no"}),)))
    run_sync(bus, drop_item, "out", DROPPED)
    bus.call(PutBlob(FILE))
    file = Attachment("note.txt", SHA256, "text/plain", len(FILE))
    message = OutgoingMessage("file-1", "web", "", "mine", "general", "", AT, attachments=(file,))
    bus.call(Append(records=(message_record(message, "run-1"),)))


_TAKE_A_BODY: dict[Route, dict[str, Any]] = {
    PUT_USER: {"id": 7},
    BEFRIEND: {"nametag": "@bob", "action": "marry"},
    PUT_SWARM: {"nametag": "desk"},
    PUT_CHANNEL: {"name": "launch", "action": "sing"},
    PUT_CONNECTOR: {"id": "x", "kind": "pigeon"},
}


def _of_bodies() -> list[Case]:
    padded = b'{"pad": "' + b"x" * 4000 + b'"}'
    return [
        case
        for route, bad in _TAKE_A_BODY.items()
        for case in (
            Case(route, 400, "bad_json", content=b"{", headers=JSON, who="admin"),
            Case(route, 413, "too_large", content=padded, headers=JSON, hasty=True, who="admin"),
            Case(route, 415, "not_json", content=b"a=b", who="admin"),
            Case(route, 422, "bad_envelope", body=bad, who="admin"),
        )
    ]


PEOPLE_SUCCESSES = [
    Case(USERS, 200, who="admin"),
    Case(PUT_USER, 200, body={"id": "dan", "nametag": "dan"}, who="admin"),
    Case(DROP_USER, 200, at="/api/users/eve", who="admin"),
    Case(BEFRIEND, 200, body={"nametag": "@bob", "action": "request"}),
    Case(FRIENDS, 200),
    Case(PUT_SWARM, 200, body={"nametag": "desk", "action": "open"}),
    Case(SWARMS, 200),
    Case(CONTACTS, 200, at="/api/swarms/desk/contacts"),
    Case(
        PUT_CHANNEL,
        200,
        body={"name": "launch", "action": "join", "username": "bob", "user": "bob", "agent": "sales"},
        who="admin",
    ),
    Case(CHANNELS, 200),
    Case(MESSAGES, 200, at="/api/channels/launch/messages"),
    Case(PUT_CONNECTOR, 200, body={"id": "more", "kind": "console"}, who="admin"),
    Case(CONNECTORS, 200, who="admin"),
    Case(DROP_CONNECTOR, 200, at="/api/connectors/spare", who="admin"),
    Case(OUTBOX, 200, params={"state": "dead"}, who="admin"),
    Case(FORGET, 200, at="/api/outbox/out/s1", who="admin"),
    Case(AGAIN, 200, at="/api/outbox/out/s2/retry", who="admin"),
]

PEOPLE_REFUSALS = [
    *_of_bodies(),
    Case(FILES, 404, "unknown_file", at=f"/api/sdk/session/{{mine}}/files/{'0' * 64}"),
    Case(FILES, 404, "unknown_session", at=f"/api/sdk/session/{{bobs}}/files/{SHA256}"),
    Case(FILES, 410, "conversation_deleted", at=f"/api/sdk/session/{{gone}}/files/{SHA256}"),
    Case(FILES, 422, "bad_parameter", at="/api/sdk/session/{mine}/files/short"),
    Case(PUT_USER, 404, "unknown_entity", body={"id": "nobody", "agent": "general"}, who="admin"),
    Case(PUT_USER, 409, "name_taken", body={"id": "anna", "nametag": "ann"}, who="admin"),
    Case(DROP_USER, 404, "unknown_entity", at="/api/users/nobody", who="admin"),
    Case(DROP_USER, 422, "invalid", at="/api/users/no!body", who="admin"),
    Case(BEFRIEND, 404, "unknown_entity", body={"nametag": "@nobody", "action": "request"}),
    Case(BEFRIEND, 409, "refused", body={"nametag": "@cat", "action": "remove"}),
    Case(PUT_SWARM, 404, "unknown_entity", body={"nametag": "nowhere", "action": "open"}),
    Case(PUT_SWARM, 409, "name_taken", body={"nametag": "ann", "action": "create", "agent": "general"}),
    Case(CONTACTS, 404, "unknown_entity", at="/api/swarms/nowhere/contacts"),
    Case(CONTACTS, 422, "invalid", at="/api/swarms/no!where/contacts"),
    Case(PUT_CHANNEL, 404, "unknown_entity", body={"name": "nowhere", "action": "remove"}, who="admin"),
    Case(
        PUT_CHANNEL,
        409,
        "name_taken",
        body={"name": "launch", "action": "create", "username": "ann", "user": "ann", "agent": "general"},
        who="admin",
    ),
    Case(MESSAGES, 404, "unknown_entity", at="/api/channels/nowhere/messages"),
    Case(MESSAGES, 422, "invalid", at="/api/channels/no!where/messages"),
    Case(PUT_CONNECTOR, 409, "name_taken", body={"id": "out", "kind": "console"}, who="admin"),
    Case(DROP_CONNECTOR, 404, "unknown_entity", at="/api/connectors/nowhere", who="admin"),
    Case(DROP_CONNECTOR, 422, "invalid", at="/api/connectors/no!where", who="admin"),
    Case(OUTBOX, 422, "invalid", params={"connector": "no!where"}, who="admin"),
    Case(AGAIN, 404, "unknown_entity", at="/api/outbox/out/never/retry", who="admin"),
    Case(AGAIN, 422, "invalid", at=f"/api/outbox/out/{DROPPED}/retry", who="admin"),
    Case(FORGET, 404, "unknown_entity", at="/api/outbox/out/never", who="admin"),
    Case(FORGET, 422, "invalid", at=f"/api/outbox/out/{DROPPED}", who="admin"),
    *(
        Case(route, 403, "admin_only", at=at)
        for route, at in (
            (USERS, "/api/users"),
            (DROP_USER, "/api/users/bob"),
            (CONNECTORS, "/api/connectors"),
            (DROP_CONNECTOR, "/api/connectors/out"),
            (OUTBOX, "/api/outbox"),
            (AGAIN, "/api/outbox/out/s2/retry"),
            (FORGET, "/api/outbox/out/s2"),
        )
    ),
]

# Answers that are tested elsewhere: two concurrent decisions, and a file, which is not JSON.
PEOPLE_ELSEWHERE = {(AGAIN, 409), (FORGET, 409), (FILES, 200)}
