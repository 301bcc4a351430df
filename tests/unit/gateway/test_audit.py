from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway.instrumentation import SECURITY_HEADERS
from magent2.telemetry.logs import JsonLines, fields_of
from tests.support.gateway import asgi_client, message
from tests.support.keys import ACCESS, ADMIN, create_key_holder

SECRET_TEXT = "nobody may read this in a log"  # pragma: allowlist secret


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "magent2.audit")
    return caplog


def audited(lines: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [{"text": line.message, **fields_of(line)} for line in lines.records if line.name == "magent2.audit"]


async def test_sends_stops_and_deletions_are_told_with_who_and_what_and_no_text(
    bus: MemoryBus, lines: pytest.LogCaptureFixture
) -> None:
    ann = await create_key_holder(bus, "user:ann")
    async with asgi_client(bus, ACCESS) as client:
        await client.post("/send", json=message(SECRET_TEXT, id="m1"), headers=ann.headers)
        await client.post("/api/sdk/session/one/stop", headers=ann.headers)
        await client.get("/api/sdk/session/one", headers=ann.headers)
        await client.delete("/api/sdk/session/one", headers=ADMIN)

    told = audited(lines)
    who = {"principal": "user:ann", "admin": False, "key": ann.id, "client": "127.0.0.1"}
    assert told[0] == {"text": "key used", "key": ann.id, "principal": "user:ann"}
    ids = {"conversation_id": "one", "envelope_id": "m1", "sender": "user:ann"}
    assert told[1] == {"text": "acted", "act": "POST /send", "status": 200, "ids": ids, **who}
    assert [(one["act"], one["status"]) for one in told[2:]] == [
        ("POST /api/sdk/session/{session_id}/stop", 202),
        ("DELETE /api/sdk/session/{session_id}", 204),
    ]
    assert told[2]["ids"]["agent"] == "Ada"
    assert (told[3]["key"], told[3]["admin"], told[3]["ids"]) == (None, True, {"session_id": "one"})
    assert SECRET_TEXT not in repr(told)


async def test_a_batch_of_dead_letters_is_told_with_what_it_was_about(
    bus: MemoryBus, lines: pytest.LogCaptureFixture
) -> None:
    async with asgi_client(bus, ACCESS) as client:
        await client.post("/api/dead", json={"action": "drop", "agent": "Ada", "reason": SECRET_TEXT}, headers=ADMIN)

    (told,) = audited(lines)
    ids = {"action": "drop", "agent": "Ada", "dry_run": False, "letters": 0, "refused": 0}
    assert (told["act"], told["ids"]) == ("POST /api/dead", ids)
    assert SECRET_TEXT not in repr(told)


async def test_a_refused_act_is_told_too(bus: MemoryBus, lines: pytest.LogCaptureFixture) -> None:
    ann = await create_key_holder(bus, "user:ann")
    async with asgi_client(bus, ACCESS) as client:
        await client.post("/send", json=message(), headers=ADMIN)
        await client.delete("/api/sdk/session/one", headers=ann.headers)

    assert [one["status"] for one in audited(lines) if one["text"] == "acted"] == [200, 404]


async def test_the_line_of_a_refused_act_says_who_tried_what_on_which_target(
    bus: MemoryBus, lines: pytest.LogCaptureFixture
) -> None:
    ann = await create_key_holder(bus, "user:ann")
    attempts: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/send", message(SECRET_TEXT, id="m1", sender="user:bob")),
        ("POST", "/api/sdk/session/message", {"session_id": "hers", "user_input": SECRET_TEXT}),
        ("POST", "/api/tools/execute", {"session_id": "hers", "tool": "weather", "args": {"city": SECRET_TEXT}}),
        ("POST", "/api/dead/Ada/7/retry", {}),
        ("GET", "/metrics", {}),
    ]
    async with asgi_client(bus, ACCESS) as client:
        for method, path, body in attempts:
            await client.request(method, path, json=body, headers=ann.headers)

    told = [one for one in audited(lines) if one["text"] == "acted"]
    assert [(one["act"], one["status"], one["problem"], one["ids"]) for one in told] == [
        (
            "POST /send", 403, "foreign_sender",
            {"conversation_id": "one", "envelope_id": "m1", "sender": "user:bob"},
        ),
        ("POST /api/sdk/session/message", 404, "unknown_session", {"session_id": "hers"}),
        ("POST /api/tools/execute", 404, "unknown_session", {"session_id": "hers", "tool": "weather"}),
        ("POST /api/dead/Ada/7/retry", 403, "admin_only", {}),
        ("GET /metrics", 403, "admin_only", {}),
    ]  # fmt: skip
    assert {(one["principal"], one["key"]) for one in told} == {("user:ann", ann.id)}
    assert SECRET_TEXT not in repr(told)


async def test_a_credential_that_is_refused_is_told_by_its_id_alone(
    bus: MemoryBus, lines: pytest.LogCaptureFixture
) -> None:
    ann = await create_key_holder(bus, "user:ann")
    await ann.revoke()
    async with asgi_client(bus, ACCESS) as client:
        await client.get("/api/sdk/sessions", headers=ann.headers)
        await client.get("/api/sdk/sessions", headers={"authorization": "Bearer a-wrong-token-of-some-length"})
        await client.get("/api/sdk/sessions")

    told = [one for one in audited(lines) if one["text"] == "refused"]
    assert [one["key"] for one in told] == [ann.id, None]
    assert "a-wrong-token" not in repr(told)
    assert ann.text not in repr(told)


async def test_every_line_is_json(bus: MemoryBus, lines: pytest.LogCaptureFixture) -> None:
    async with asgi_client(bus, ACCESS) as client:
        await client.post("/send", json=message(), headers=ADMIN)

    assert lines.records
    for line in lines.records:
        assert orjson.loads(JsonLines().format(line))["logger"]


async def test_nothing_is_audited_when_the_audit_log_is_off(bus: MemoryBus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "magent2.audit")
    async with asgi_client(bus, ACCESS) as client:
        await client.post("/send", json=message(), headers=ADMIN)

    assert audited(caplog) == []


async def test_every_answer_carries_what_keeps_a_browser_safe(bus: MemoryBus) -> None:
    async with asgi_client(bus, ACCESS) as client:
        answers = [
            await client.get("/"),
            await client.get("/page/page.js"),
            await client.get("/health"),
            await client.get("/nowhere", headers=ADMIN),
            await client.get("/api/workers"),
            await client.post("/send", json=message(), headers=ADMIN),
            await client.post("/send", json={}, headers=ADMIN),
            await client.get("/stream/one", params={"max_events": 1}, headers=ADMIN),
            await client.delete("/api/sdk/session/one", headers=ADMIN),
        ]

    for answer in answers:
        for name, value in SECURITY_HEADERS:
            assert answer.headers.get_list(name.decode()) == [value.decode()], answer.url
        (policy,) = answer.headers.get_list("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
    stream = answers[7]
    assert stream.headers["x-accel-buffering"] == "no"
    assert "no-transform" in stream.headers["cache-control"]
