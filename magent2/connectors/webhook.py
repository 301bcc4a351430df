"""The `webhook` connector: sends each message as a signed POST to a URL that an administrator has registered.

The first half is the SSRF guard, which restricts the addresses that a webhook may connect to.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import httpx2
import orjson

from magent2.connectors.interface import DeliveryReceipt, OutgoingMessage
from magent2.directory.connectors import Capabilities
from magent2.errors import NotTaken, OutcomeUnknown, SettingsError, TransientError
from magent2.fair_share import FairThreads
from magent2.settings import tls_verification

# --- The SSRF guard
#
# Only public addresses are allowed, unless the webhook's configuration has `allow_private`. The host name is resolved
# once, all its addresses must be allowed, and the request goes to one of these addresses. So a name server that
# returns another address for a second query (DNS rebinding) achieves nothing.

URL_MAX_CHARS = 2000
RESOLVE_MAX_S = 5.0
RESOLVE_THREADS_MAX = 4  # of one webhook

# IPv6 networks whose addresses contain an IPv4 address in the last 32 bits. That address decides: a name server of a
# network without IPv4 returns such addresses (NAT64) for public receivers.
_EMBEDS_IPV4 = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))

# The blocks of the IANA special-purpose registries of IPv4 and IPv6 (as of October 2025), and multicast. No receiver of
# webhooks has an address in one of them, so those that the registries call globally reachable are refused too: they are
# answered by a service of the local network. `ipaddress` is not asked: its tables differ between releases of Python.
_IPV4_SPECIAL = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private use
            "100.64.0.0/10",  # shared address space of providers
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",  # private use
            "192.0.0.0/24",  # IETF protocol assignments, with metadata services of clouds
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private use
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_IPV6_GLOBAL = IPv6Network("2000::/3")  # everything else is loopback, private, reserved, multicast or translated
_IPV6_SPECIAL = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarks, AMT, AS112, ORCHID, DRIP
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which contains an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)


class Resolver(Protocol):
    """Returns the addresses of a host name. Raises `TransientError` if the name cannot be resolved now."""

    async def __call__(self, host: str, port: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """The parts of a webhook's URL. `private`: addresses that are not public are allowed too."""

    scheme: str
    host: str
    port: int
    path: str
    private: bool

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == {"http": 80, "https": 443}[self.scheme] else f"{name}:{self.port}"

    def url(self, address: str) -> str:
        """Return the URL with the address in place of the host name."""
        name = f"[{address}]" if ":" in address else address
        return f"{self.scheme}://{name}:{self.port}{self.path}"


def parse_target(url: str, *, private: bool = False) -> WebhookTarget:
    """Parse and check a URL. Raises `SettingsError`."""
    if len(url) > URL_MAX_CHARS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise SettingsError(
            f"a webhook URL must have at most {URL_MAX_CHARS} printable ASCII characters, without spaces or backslashes"
        )
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise SettingsError(f"{url[:80]!r} is not a valid URL: {error}") from error
    _check_parts(parts, host, private)
    if _parse_address(host) is not None:
        _check_address(host, private)
    default_port = 443 if parts.scheme == "https" else 80
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(parts.scheme, host, default_port if port is None else port, path, private)


def _check_parts(parts: SplitResult, host: str, private: bool) -> None:
    if parts.scheme not in (("https", "http") if private else ("https",)):
        raise SettingsError("a webhook URL must begin with https://; http:// requires allow_private")
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        raise SettingsError("a webhook URL must have a host, and no user, password or fragment")
    if parts.port == 0:
        raise SettingsError("a webhook URL cannot have the port 0")
    # Resolvers also accept numbers such as 2130706433, 0x7f.1 or 0177.0.0.1 as addresses of IPv4. They would bypass
    # the check of the address, so only the standard form is accepted.
    numeric = host.replace(".", "").replace("x", "").isalnum() and host.rsplit(".", maxsplit=1)[-1][:1].isdigit()
    if numeric and _parse_address(host) is None:
        raise SettingsError(f"{host[:80]!r} is not an address in standard form; write it as four decimal numbers")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is on the public internet. An IPv4 address inside an IPv6 address decides for it."""
    if isinstance(address, IPv6Address) and any(address in network for network in _EMBEDS_IPV4):
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _IPV4_SPECIAL)
    return address in _IPV6_GLOBAL and not any(address in network for network in _IPV6_SPECIAL)


async def allowed_addresses(target: WebhookTarget, resolve: Resolver) -> list[str]:
    """Return the addresses of a target. Raises `NotTaken` if one of them is not allowed."""
    if _parse_address(target.host) is not None:  # checked when the URL was parsed
        return [target.host]
    found = await resolve(target.host, target.port)
    if not found:
        raise TransientError(f"cannot resolve {target.host!r}: it has no address")
    try:
        for text in found:
            _check_address(text, target.private)
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


def _check_address(text: str, private: bool) -> None:
    address = _parse_address(text)
    if address is None or (not private and not is_public(address)):
        raise SettingsError("the address is not public; webhooks to private addresses require allow_private")
    if address.is_unspecified or address.is_multicast:
        raise SettingsError("the address is unspecified or multicast; use the address of one host")


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


# --- The connector

SEND_MAX_S = 15.0
ANSWER_MAX_BYTES = 64 << 10
BODY_MAX_BYTES = 24 << 20  # a message with its files, in base64
SECRET_MIN_CHARS = 16
# Only variables with this prefix can be named. Otherwise an administrator of the API could have requests signed with
# any variable of the worker, and the receiver could try out guesses of a short one.
SECRET_ENV_PREFIX = "MAGENT2_SECRET_"  # noqa: S105  # pragma: allowlist secret
WEBHOOK_SETTINGS = ("url", "secret", "secret_env", "allow_private", "takes_key")
RECEIPT_MAX_CHARS = 200

KEY, TIMESTAMP, SIGNATURE = "Idempotency-Key", "X-Magent2-Timestamp", "X-Magent2-Signature"
VERSION = "v1"

_SECRET_ENV = re.compile(rf"{SECRET_ENV_PREFIX}[A-Z0-9_]{{1,100}}")

TRY_LATER = (408, 425, 429, 503)  # the receiver did not accept the message, and may accept it later


def signature(secret: str, timestamp: str, key: str, body: bytes) -> str:
    """Return the signature of a request. The receiver computes it too and compares.

    The timestamp and the key are signed with the body, so a recorded request cannot be sent later under another key.
    """
    text = b".".join((VERSION.encode(), timestamp.encode(), key.encode(), body))
    return f"{VERSION}={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def check_webhook(config: Mapping[str, object]) -> WebhookTarget:
    """Check the configuration of a webhook, and return its target. Raises `SettingsError`.

    `secret_env` is checked for its form only: the variable has to be set where the relay runs, not here.
    """
    unknown = set(config) - set(WEBHOOK_SETTINGS)
    if unknown:
        raise SettingsError(
            f"unknown webhook settings: {', '.join(sorted(unknown))}; known: {', '.join(WEBHOOK_SETTINGS)}"
        )
    secret, variable = config.get("secret"), config.get("secret_env")
    if (secret is None) == (variable is None):
        raise SettingsError("a webhook needs one of secret and secret_env; give one of them")
    if variable is not None and not (isinstance(variable, str) and _SECRET_ENV.fullmatch(variable)):
        raise SettingsError(
            f"secret_env names an environment variable that begins with {SECRET_ENV_PREFIX}, such as"
            f" {SECRET_ENV_PREFIX}HOOK"
        )
    if secret is not None and (not isinstance(secret, str) or len(secret) < SECRET_MIN_CHARS):
        raise SettingsError(
            f"the secret of a webhook has at least {SECRET_MIN_CHARS} characters; make one with 'openssl rand -hex 32'"
        )
    url = config.get("url")
    if not isinstance(url, str):
        raise SettingsError("a webhook needs a url")
    return parse_target(url, private=config.get("allow_private") is True)


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
    facts = message.facts()
    facts["id"] = facts.pop("key")
    facts["attachments"] = [
        {**attachment.facts(), "data": base64.b64encode(files[attachment.sha256]).decode()}
        for attachment in message.attachments
    ]
    return orjson.dumps(facts)
