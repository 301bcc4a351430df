"""Restricts the addresses that a webhook may connect to (protection against SSRF).

Only public addresses are allowed, unless the webhook's configuration has `allow_private`. The host name is resolved
once, all its addresses must be allowed, and the request goes to one of these addresses. So a name server that returns
another address for a second query (DNS rebinding) achieves nothing.
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

# IPv6 networks whose addresses contain an IPv4 address in the last 32 bits. That address decides.
_EMBEDS_IPV4 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"), IPv6Network("::/96"))


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
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address.teredo is not None:
            return False
        if inner is None and any(address in network for network in _EMBEDS_IPV4):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


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


async def resolve_name(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_MAX_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
