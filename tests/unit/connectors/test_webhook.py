from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest

from magent2.connectors import webhook
from magent2.connectors.interface import Attachment, OutgoingMessage
from magent2.connectors.webhook import WebhookConnector, signature
from magent2.errors import NotTaken, OutcomeUnknown, SettingsError, TransientError
from magent2.models.webhook_config import WebhookTarget, is_public, parse_target
from tests.support.fake_receivers import WebhookReceiver, answer, ok, webhook_receiver

SECRET = "a-secret-for-tests-only"  # pragma: allowlist secret
VARIABLE = "MAGENT2_SECRET_HOOK"
MESSAGE = OutgoingMessage("m-1", "hook", "ann", "one", "Ada", "hello", "2026-01-01T00:00:00+00:00")


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as found:
        yield found


async def post(
    url: str, message: OutgoingMessage = MESSAGE, files: dict[str, bytes] | None = None, **more: Any
) -> str | None:
    connector = WebhookConnector(
        {"url": url, "secret": SECRET, "allow_private": True, **more.pop("config", {})}, **more
    )
    try:
        return (await connector.send(message, files or {})).id
    finally:
        await connector.aclose()


async def test_a_message_is_a_signed_post_with_its_key(receiver: WebhookReceiver) -> None:
    assert await post(receiver.url, clock=lambda: 1_700_000_000.5) == "theirs-1"

    (got,) = receiver.posts
    assert got.is_signed_by(SECRET)
    assert not got.is_signed_by("another-secret-entirely")
    assert (got.headers["idempotency-key"], got.headers["x-magent2-timestamp"]) == ("m-1", "1700000000")
    body = json.loads(got.body)
    assert (body["id"], body["text"], body["target"], body["agent"]) == ("m-1", "hello", "ann", "Ada")


async def test_a_secret_can_stay_in_the_environment(receiver: WebhookReceiver) -> None:
    config = {"secret_env": VARIABLE, "secret": None}

    await post(receiver.url, config=config, environ={VARIABLE: SECRET})

    assert receiver.posts[0].is_signed_by(SECRET)


async def test_a_worker_without_the_variable_sends_nothing_and_names_it(receiver: WebhookReceiver) -> None:
    with pytest.raises(TransientError, match=f"variable {VARIABLE} .* restart the worker"):
        await post(receiver.url, config={"secret_env": VARIABLE, "secret": None}, environ={})

    assert receiver.posts == []


def test_the_signature_covers_time_key_and_body() -> None:
    first = signature(SECRET, "1", "k", b"{}")
    others = [("2", "k", b"{}"), ("1", "l", b"{}"), ("1", "k", b"{ }")]

    assert first.startswith("v1=")
    assert first not in [signature(SECRET, *other) for other in others]


async def test_files_go_along(receiver: WebhookReceiver) -> None:
    data = b"content"
    name = hashlib.sha256(data).hexdigest()
    attachment = Attachment("a.txt", name, "text/plain", len(data))
    message = OutgoingMessage(
        "m-2", "hook", "", "one", "Ada", "", "2026-01-01T00:00:00+00:00", attachments=(attachment,)
    )

    await post(receiver.url, message, {name: data})

    (file,) = json.loads(receiver.posts[0].body)["attachments"]
    assert (base64.b64decode(file["data"]), file["name"]) == (data, "a.txt")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (answer("302 Found", headers=["Location: http://127.0.0.1:1/"]), NotTaken),
        (answer("400 Bad Request"), NotTaken),
        (answer("410 Gone"), NotTaken),
        (answer("429 Too Many Requests"), TransientError),
        (answer("503 Service Unavailable"), TransientError),
        (answer("500 Internal Server Error"), OutcomeUnknown),
        (answer("502 Bad Gateway"), OutcomeUnknown),
        (None, OutcomeUnknown),
        (b"not http at all\r\n\r\n", OutcomeUnknown),
    ],
)
async def test_what_an_answer_means(receiver: WebhookReceiver, said: bytes | None, error: type[Exception]) -> None:
    receiver.answers.append(said)

    with pytest.raises(error):
        await post(receiver.url)

    assert len(receiver.posts) == 1  # nothing is followed, nothing tried again here


async def test_a_refused_connection_means_that_nothing_arrived() -> None:
    with socket.socket() as unheard:  # bound, so that no other process gets the port
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(TransientError):
            await post(f"http://127.0.0.1:{unheard.getsockname()[1]}/")


async def test_a_receiver_that_never_answers_is_given_up(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "SEND_MAX_S", 0.05)
    receiver.answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
    never = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await never.wait()
        finally:
            writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(OutcomeUnknown):
            await post(f"http://127.0.0.1:{port}/")
    finally:
        never.set()
        server.close()
        await server.wait_closed()


async def test_an_answer_that_does_not_end_is_not_kept(receiver: WebhookReceiver) -> None:
    receiver.answers.append(ok(b'{"id": "' + b"x" * (webhook.ANSWER_MAX_BYTES + 1) + b'"}'))

    assert await post(receiver.url) is None


async def test_the_name_is_resolved_once_and_the_request_goes_to_that_address(receiver: WebhookReceiver) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = f"http://hook.example:{receiver.port}/hook"
    await post(url, resolve=resolve)

    assert asked == ["hook.example"]
    assert receiver.posts[0].headers["host"] == f"hook.example:{receiver.port}"


@pytest.mark.parametrize("found", [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["169.254.169.254"]])
async def test_a_name_with_an_address_that_is_not_public_is_not_called(found: list[str]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return found

    connector = WebhookConnector({"url": "https://hook.example/", "secret": SECRET}, resolve=resolve)
    try:
        with pytest.raises(NotTaken, match="the address is not public"):
            await connector.send(MESSAGE, {})
    finally:
        await connector.aclose()


ESCAPES = [
    "http://example.com/",
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.0.1.:443/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://0.0.0.0/",
    "https://10.1.2.3/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://169.254.169.254/latest/meta-data",
    "https://100.64.0.1/",
    "https://224.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fc00::1]/",
    "https://[ff02::1]/",
    "https://user:pass@example.com/",  # pragma: allowlist secret
    "https://example.com#@127.0.0.1/",
    "https://example.com\\@127.0.0.1/",
    "https://example.com:0/",
    "https://example.com:99999/",
    "https:///path",
    "https://exa mple.com/",
    "https://example.com/\r\nX-Evil: 1",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ftp://example.com/",
    "https://ex\u0430mple.com/",
    "https://" + "a" * 3000 + ".com/",
]


@pytest.mark.parametrize("url", ESCAPES)
def test_a_url_that_leads_elsewhere_is_refused_when_it_is_set_up(url: str) -> None:
    with pytest.raises(SettingsError):
        parse_target(url)


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ip_address(text))


def test_a_plain_url_is_taken() -> None:
    assert parse_target("https://hooks.example.com/in?x=1") == WebhookTarget(
        "https", "hooks.example.com", 443, "/in?x=1", False
    )


@pytest.mark.parametrize(
    "config",
    [
        {"url": "https://example.com/"},
        {"url": "https://example.com/", "secret": "short"},  # pragma: allowlist secret
        {"secret": SECRET},
        {"url": "https://example.com/", "secret": SECRET, "color": "red"},
        {"url": "https://example.com/", "secret": SECRET, "secret_env": VARIABLE},
        {"url": "https://example.com/", "secret_env": "OPENAI_API_KEY"},  # pragma: allowlist secret
        {"url": "https://example.com/", "secret_env": "MAGENT2_SECRET_"},  # pragma: allowlist secret
        {"url": "https://example.com/", "secret_env": VARIABLE + "\n"},
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        WebhookConnector(config)
