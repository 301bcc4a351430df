"""`webhook`: a message as a signed POST to a URL that whoever runs the place has set up."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

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

TRY_LATER = (408, 425, 429, 503)  # answers of a receiver that has not taken it


def signature(secret: str, timestamp: str, key: str, body: bytes) -> str:
    """What the receiver computes for itself, and compares."""
    text = b".".join((VERSION.encode(), timestamp.encode(), key.encode(), body))
    return f"{VERSION}={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def check_webhook(config: Mapping[str, Any]) -> WebhookTarget:
    """The webhook's door, if its configuration can be used."""
    unknown = set(config) - {"url", "secret", "allow_private", "takes_key"}
    if unknown:
        raise SettingsError(
            f"a webhook has no {', '.join(sorted(unknown))}; give url, secret, allow_private, takes_key"
        )
    secret = config.get("secret")
    if not isinstance(secret, str) or len(secret) < SECRET_MIN_CHARS:
        raise SettingsError(f"a webhook needs a secret of at least {SECRET_MIN_CHARS} characters")
    url = config.get("url")
    if not isinstance(url, str):
        raise SettingsError("a webhook needs a url")
    return parse_target(url, private=config.get("allow_private") is True)


class WebhookConnector:
    """Goes to one URL, follows nothing, and takes a short answer."""

    def __init__(
        self, config: Mapping[str, Any], *, resolve: Resolver = resolve_name, clock: Callable[[], float] = time.time
    ) -> None:
        self._door = check_webhook(config)
        self._secret = str(config["secret"])
        self._resolve = resolve
        self._clock = clock
        self.capabilities = Capabilities(
            text=True, files=True, reply_to=True, takes_key=config.get("takes_key") is True
        )
        self._http = httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=SEND_MAX_S)

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        body = body_of(message, files)
        if len(body) > BODY_MAX_BYTES:
            raise NotTaken(f"the message takes {len(body)} bytes, a webhook takes {BODY_MAX_BYTES}")
        addresses = await allowed_addresses(self._door, self._resolve)
        headers = self._headers(message.key, body)
        try:
            async with asyncio.timeout(SEND_MAX_S):
                return await self._post(addresses[0], headers, body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise TransientError(f"{self._door.host} does not answer: {type(error).__name__}") from error
        except (httpx2.HTTPError, TimeoutError) as error:
            raise OutcomeUnknown(
                f"{self._door.host} was lost before it had answered: {type(error).__name__}"
            ) from error

    async def aclose(self) -> None:
        await self._http.aclose()

    def _headers(self, key: str, body: bytes) -> dict[str, str]:
        timestamp = str(int(self._clock()))
        return {
            "Host": self._door.host_header,
            "Content-Type": "application/json",
            "User-Agent": "magent2",
            "Connection": "close",
            KEY: key,
            TIMESTAMP: timestamp,
            SIGNATURE: signature(self._secret, timestamp, key, body),
        }

    async def _post(self, address: str, headers: Mapping[str, str], body: bytes) -> DeliveryReceipt:
        extensions = {"sni_hostname": self._door.host}  # also what the certificate is checked for
        async with self._http.stream(
            "POST", self._door.url(address), headers=dict(headers), content=body, extensions=extensions
        ) as response:
            status = response.status_code
            answer = await _short(response) if 200 <= status < 300 else b""
        return receipt_of(status, answer, self._door.host)


async def _short(response: httpx2.Response) -> bytes:
    """The beginning of the answer; a receiver that does not stop is not listened to any longer."""
    answer = b""
    async for part in response.aiter_raw():
        answer += part
        if len(answer) > ANSWER_MAX_BYTES:
            return b""
    return answer


def receipt_of(status: int, answer: bytes, host: str) -> DeliveryReceipt:
    """What an answer means."""
    if 200 <= status < 300:
        return DeliveryReceipt(_named(answer))
    if status in TRY_LATER:
        raise TransientError(f"{host} answers {status}; it takes nothing now")
    if status >= 500:
        raise OutcomeUnknown(f"{host} answers {status}; it may have taken the message")
    what = "sends elsewhere, which is not followed" if 300 <= status < 400 else "refuses the message"
    raise NotTaken(f"{host} answers {status}: it {what}")


def _named(answer: bytes) -> str | None:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    name = found.get("id") if isinstance(found, dict) else None
    return name[:RECEIPT_MAX_CHARS] if isinstance(name, str) else None


def body_of(message: OutgoingMessage, files: Mapping[str, bytes]) -> bytes:
    """The message as the receiver gets it."""
    facts = message.facts()
    facts["id"] = facts.pop("key")
    facts["attachments"] = [
        {**attachment.facts(), "data": base64.b64encode(files[attachment.sha256]).decode()}
        for attachment in message.attachments
    ]
    return orjson.dumps(facts)
