"""Where a webhook may go: to public addresses, unless whoever set it up allows others.

The name is resolved once, every address that it has must be allowed, and the request goes to one of those addresses
and to no other: a name that changes its mind between the look and the call changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from magent2.errors import NotTaken, SettingsError, TransientError

URL_MAX_CHARS = 2000
RESOLVE_MAX_S = 5.0

# IPv6 addresses that carry one of IPv4 in their last 32 bits, and are worth what that one is worth
_CARRIERS = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"), IPv6Network("::/96"))


class Resolver(Protocol):
    """The addresses that a name has; `TransientError` when nobody can say."""

    async def __call__(self, host: str, port: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A webhook's URL, taken apart. `private`: addresses that are not public are allowed as well."""

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
        """The request's URL at one address."""
        name = f"[{address}]" if ":" in address else address
        return f"{self.scheme}://{name}:{self.port}{self.path}"


def parse_target(url: str, *, private: bool = False) -> WebhookTarget:
    """A URL that may be called; `SettingsError` says what is wrong with it."""
    if len(url) > URL_MAX_CHARS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise SettingsError(f"a webhook's URL has at most {URL_MAX_CHARS} printable ASCII characters, and no spaces")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise SettingsError(f"{url[:80]!r} is no URL: {error}") from error
    _check_parts(parts, host, private)
    default = 443 if parts.scheme == "https" else 80
    door = WebhookTarget(parts.scheme, host, default if port is None else port, _path(parts), private)
    if _address(host) is not None:
        _check_address(host, private)
    return door


def _check_parts(parts: SplitResult, host: str, private: bool) -> None:
    if parts.scheme not in (("https", "http") if private else ("https",)):
        raise SettingsError("a webhook's URL begins with https://; http:// needs allow_private")
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        raise SettingsError("a webhook's URL has a host, and no user, password or fragment")
    if parts.port == 0:
        raise SettingsError("0 is no port that can be called")
    numeric = host.replace(".", "").replace("x", "").isalnum() and host.rsplit(".", maxsplit=1)[-1][:1].isdigit()
    if numeric and _address(host) is None:
        raise SettingsError(f"{host[:80]!r} is no address in its usual form; write it as four decimal numbers")


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the open internet, also inside the clothes of another."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address.teredo is not None:
            return False
        if inner is None and any(address in network for network in _CARRIERS):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


async def allowed_addresses(door: WebhookTarget, resolve: Resolver) -> list[str]:
    """Where the request may go. `NotTaken`: one of the name's addresses is not allowed."""
    if _address(door.host) is not None:
        return [door.host]
    found = await resolve(door.host, door.port)
    if not found:
        raise TransientError(f"{door.host!r} has no address")
    try:
        for text in found:
            _check_address(text, door.private)
    except SettingsError as error:
        raise NotTaken(f"{door.host!r}: {error}") from error
    return found


async def resolve_name(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_MAX_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise TransientError(f"{host!r} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def _check_address(text: str, private: bool) -> None:
    address = _address(text)
    if address is None or (not private and not is_public(address)):
        raise SettingsError("it is not at a public address; allow_private lets a webhook go there")
    if address.is_unspecified or address.is_multicast:
        raise SettingsError("it is at an address that nobody can have")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
