"""The `webhook` connector: sends each message as a signed POST to a URL that an administrator has registered."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping

import httpx2
import orjson

from magent2.connectors.interface import DeliveryReceipt, OutgoingMessage
from magent2.connectors.ssrf_guard import Resolver, WebhookTarget, allowed_addresses, parse_target, resolve_name
from magent2.directory.connectors import Capabilities
from magent2.errors import NotTaken, OutcomeUnknown, SettingsError, TransientError

SEND_MAX_S = 15.0
ANSWER_MAX_BYTES = 64 << 10
BODY_MAX_BYTES = 24 << 20  # a message with its files, in base64
SECRET_MIN_CHARS = 16
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


def check_webhook(config: Mapping[str, object]) -> WebhookTarget:
    """Check the configuration of a webhook, and return its target. Raises `SettingsError`."""
    unknown = set(config) - {"url", "secret", "allow_private", "takes_key"}
    if unknown:
        raise SettingsError(
            f"unknown webhook settings: {', '.join(sorted(unknown))}; known: url, secret, allow_private, takes_key"
        )
    secret = config.get("secret")
    if not isinstance(secret, str) or len(secret) < SECRET_MIN_CHARS:
        raise SettingsError(f"a webhook needs a secret of at least {SECRET_MIN_CHARS} characters")
    url = config.get("url")
    if not isinstance(url, str):
        raise SettingsError("a webhook needs a url")
    return parse_target(url, private=config.get("allow_private") is True)


def webhook_capabilities(config: Mapping[str, object]) -> Capabilities:
    return Capabilities(text=True, files=True, reply_to=True, takes_key=config.get("takes_key") is True)


class WebhookConnector:
    """Sends messages to one URL. It follows no redirects and reads only short responses."""

    def __init__(
        self, config: Mapping[str, object], *, resolve: Resolver = resolve_name, clock: Callable[[], float] = time.time
    ) -> None:
        self._target = check_webhook(config)
        self._secret = str(config["secret"])
        self._resolve = resolve
        self._clock = clock
        self.capabilities = webhook_capabilities(config)
        self._http = httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=SEND_MAX_S)

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
            raise TransientError(f"cannot connect to {self._target.host}: {type(error).__name__}") from error
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
            SIGNATURE: signature(self._secret, timestamp, key, body),
        }

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
    facts = message.facts()
    facts["id"] = facts.pop("key")
    facts["attachments"] = [
        {**attachment.facts(), "data": base64.b64encode(files[attachment.sha256]).decode()}
        for attachment in message.attachments
    ]
    return orjson.dumps(facts)
