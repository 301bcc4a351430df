"""The `webhook` connector: sends each message as a signed POST to a URL that an administrator has registered."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import httpx2
import orjson

from magent2.connectors.interface import DeliveryReceipt, OutgoingMessage
from magent2.directory.connectors import Capabilities
from magent2.errors import NotTaken, OutcomeUnknown, SettingsError, TransientError
from magent2.fair_share import FairThreads
from magent2.models.webhook_config import SECRET_MIN_CHARS, WebhookTarget, check_address, check_webhook, parse_address
from magent2.settings import tls_verification

# --- The SSRF guard
#
# Only public addresses are allowed, unless the webhook's configuration has `allow_private`. The host name is resolved
# once, all its addresses must be allowed, and the request goes to one of these addresses. So a name server that
# returns another address for a second query (DNS rebinding) achieves nothing.

RESOLVE_MAX_S = 5.0
RESOLVE_THREADS_MAX = 4  # of one webhook


class Resolver(Protocol):
    """Returns the addresses of a host name. Raises `TransientError` if the name cannot be resolved now."""

    async def __call__(self, host: str, port: int) -> list[str]: ...


async def allowed_addresses(target: WebhookTarget, resolve: Resolver) -> list[str]:
    """Return the addresses of a target. Raises `NotTaken` if one of them is not allowed."""
    if parse_address(target.host) is not None:  # checked when the URL was parsed
        return [target.host]
    found = await resolve(target.host, target.port)
    if not found:
        raise TransientError(f"cannot resolve {target.host!r}: it has no address")
    try:
        for text in found:
            check_address(text, target.private)
    except SettingsError as error:
        raise NotTaken(f"{target.host!r}: {error}") from error
    return found


class NameResolver:
    """Resolves names with the system's resolver, on threads of its own.

    A name server that does not answer occupies a thread for longer than `RESOLVE_MAX_S`. Each webhook has a resolver,
    so that it delays the deliveries of that webhook only.
    """

    def __init__(self) -> None:
        self._threads = FairThreads(RESOLVE_THREADS_MAX, name="magent2-resolve")

    async def __call__(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(RESOLVE_MAX_S):
                found = await self._threads.run(None, socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise TransientError(f"cannot resolve {host!r}: {error}") from error
        return list(dict.fromkeys(str(item[4][0]) for item in found))


# --- The connector

SEND_MAX_S = 15.0
ANSWER_MAX_BYTES = 64 << 10
BODY_MAX_BYTES = 24 << 20  # a message with its files, in base64
RECEIPT_MAX_CHARS = 200

KEY, TIMESTAMP, SIGNATURE = "Idempotency-Key", "X-Magent2-Timestamp", "X-Magent2-Signature"
VERSION = "v1"

TRY_LATER = (408, 425, 429, 503)  # the receiver did not accept the message, and may accept it later


def signature(secret: str, timestamp: str, key: str, body: bytes) -> str:
    """Return the signature of a request. The receiver computes it too and compares.

    The timestamp and the key are signed with the body, so a recorded request cannot be sent later under another key.
    """
    text = b".".join((VERSION.encode(), timestamp.encode(), key.encode(), body))
    return f"{VERSION}={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def webhook_capabilities(config: Mapping[str, object]) -> Capabilities:
    return Capabilities(text=True, files=True, reply_to=True, takes_key=config.get("takes_key") is True)


class WebhookConnector:
    """Sends messages to one URL. It follows no redirects and reads only short responses."""

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        resolve: Resolver | None = None,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._target = check_webhook(config)
        self._config = config
        self._environ = environ
        self._resolve = resolve or NameResolver()
        self._clock = clock
        self.capabilities = webhook_capabilities(config)
        verify = tls_verification()
        self._http = httpx2.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, timeout=SEND_MAX_S)

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        body = body_of(message, files)
        if len(body) > BODY_MAX_BYTES:
            raise NotTaken(f"the message has {len(body)} bytes; a webhook accepts at most {BODY_MAX_BYTES}")
        addresses = await allowed_addresses(self._target, self._resolve)
        headers = self._headers(message.key, body)
        try:
            async with asyncio.timeout(SEND_MAX_S):
                return await self._post(addresses[0], headers, body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            reason = str(error) or type(error).__name__
            raise TransientError(f"cannot connect to {self._target.host}: {reason}") from error
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = f"the connection to {self._target.host} failed before it responded: {type(error).__name__}"
            raise OutcomeUnknown(reason) from error

    async def aclose(self) -> None:
        await self._http.aclose()

    def _headers(self, key: str, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._clock()))
        return {
            "Host": self._target.host_header,
            "Content-Type": "application/json",
            "User-Agent": "magent2",
            "Connection": "close",
            KEY: key,
            TIMESTAMP: timestamp,
            SIGNATURE: signature(self._secret(), timestamp, key, body),
        }

    def _secret(self) -> str:
        """The secret. A missing variable is an error of this process: another relay may have it, so nothing is lost."""
        name = self._config.get("secret_env")
        if name is None:
            return str(self._config["secret"])
        secret = self._environ.get(str(name), "").strip()
        if len(secret) < SECRET_MIN_CHARS:
            raise TransientError(
                f"the variable {name} of the worker has no secret of at least {SECRET_MIN_CHARS} characters; set it and"
                " restart the worker"
            )
        return secret

    async def _post(self, address: str, headers: Mapping[str, str], body: bytes) -> DeliveryReceipt:
        extensions = {"sni_hostname": self._target.host}  # the certificate is checked for this name too
        async with self._http.stream(
            "POST", self._target.url(address), headers=dict(headers), content=body, extensions=extensions
        ) as response:
            status = response.status_code
            answer = await _read_short(response) if 200 <= status < 300 else b""
        return receipt_of(status, answer, self._target.host)


async def _read_short(response: httpx2.Response) -> bytes:
    """Read a short response; an empty one if it exceeds the limit. The message has arrived in either case."""
    body = b""
    async for part in response.aiter_raw():
        body += part
        if len(body) > ANSWER_MAX_BYTES:
            return b""
    return body


def receipt_of(status: int, answer: bytes, host: str) -> DeliveryReceipt:
    """Return the receipt of a response, or raise the error that its status means."""
    if 200 <= status < 300:
        return DeliveryReceipt(_receipt_id(answer))
    if status in TRY_LATER:
        raise TransientError(f"{host} responded with {status}: it accepts no messages now")
    if status >= 500:
        raise OutcomeUnknown(f"{host} responded with {status}: it may have accepted the message")
    what = "redirects are not followed" if 300 <= status < 400 else "it rejected the message"
    raise NotTaken(f"{host} responded with {status}: {what}")


def _receipt_id(answer: bytes) -> str | None:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    name = found.get("id") if isinstance(found, dict) else None
    return name[:RECEIPT_MAX_CHARS] if isinstance(name, str) else None


def body_of(message: OutgoingMessage, files: Mapping[str, bytes]) -> bytes:
    """Return the body of the request."""
    if message.notification is not None:
        return orjson.dumps({"id": message.key, **message.notification})
    facts = message.facts()
    facts["id"] = facts.pop("key")
    facts["attachments"] = [
        {**attachment.facts(), "data": base64.b64encode(files[attachment.sha256]).decode()}
        for attachment in message.attachments
    ]
    return orjson.dumps(facts)
