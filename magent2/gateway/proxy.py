"""Reverse proxies in front of a gateway: the root path, and forwarding headers of trusted proxies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from starlette.types import Scope

from magent2.errors import SettingsError

# Why not uvicorn's `proxy_headers` and `root_path` (read in uvicorn 0.54; tests/unit/gateway/test_canaries.py pins it):
# - `middleware/proxy_headers.py` ignores X-Forwarded-Host, which the Host and Origin checks need. It also replaces the
#   address of the peer, so that code behind it cannot tell whether the peer and its X-Forwarded-Host are trusted.
# - It ignores an X-Forwarded-Proto with several values, takes any text in X-Forwarded-For as the client's address, and
#   does not match ::ffff:10.0.0.1, which a dual-stack socket reports, with 10.0.0.0/8.
# - `protocols/http/httptools_impl.py` puts `root_path` before every path, also where the proxy has left it in place.

HOPS_MAX = 32  # entries of X-Forwarded-For that are read, from the nearest on
ROOT_PATH_MAX_CHARS = 200
ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# First parts of the gateway's own paths. A root path that begins with one would be ambiguous.
RESERVED = frozenset(
    {
        "agents", "api", "conversations", "dead", "health", "metrics", "openapi.json", "page", "problems", "ready",
        "send", "stream", "v1",
    }
)  # fmt: skip
SCHEMES = ("http", "https")

FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"
SCHEME_KEY = "magent2.scheme"  # scope key: the scheme that the browser used, if a trusted proxy reports it

Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The root path and the trusted proxies. By default there are none, and forwarding headers are ignored."""

    root_path: str = ""
    trusted: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, root_path: str | None = None, trusted: Iterable[str] = ()) -> ProxySettings:
        return cls(_root_path(root_path or ""), tuple(_network(text) for text in trusted))

    def apply(self, scope: Scope) -> None:
        """Restore client address, scheme, host and path of a request as they were before the proxies."""
        if self.trusted and _is_trusted(client_address(scope), self.trusted):
            self._apply_headers(scope)
        if self.root_path:
            self._put_below_root(scope)

    def connection_key(self, address: str) -> str | None:
        """Return what a connection of this peer is counted under: its address, or the /64 network of an IPv6 address.

        `None` for a trusted proxy: its connections are those of many clients, and it limits them itself.
        """
        if self.trusted and _is_trusted(address, self.trusted):
            return None
        found = _address(address.partition("%")[0])
        if isinstance(found, IPv6Address):
            return str(ip_network((found, 64), strict=False))
        return address if found is None else str(found)

    def _apply_headers(self, scope: Scope) -> None:
        headers = _forwarding_headers(scope)
        client = self._client(headers.get(FORWARDED_FOR, ""))
        if client is not None:
            scope["client"] = (client, 0)
        scheme = _last(headers.get(FORWARDED_PROTO, "")).lower()
        if scheme in SCHEMES:
            scope["scheme"] = scope[SCHEME_KEY] = scheme
        host = _last(headers.get(FORWARDED_HOST, ""))
        if host and sum(name == b"host" for name, _ in scope["headers"]) < 2:  # two are refused later
            others = [pair for pair in scope["headers"] if pair[0] != b"host"]
            scope["headers"] = [(b"host", host.encode("latin-1")), *others]

    def _client(self, chain: str) -> str | None:
        """Return the nearest address that is not a trusted proxy. Entries before it may be forged."""
        found: str | None = None
        for text in reversed(chain.rsplit(",", HOPS_MAX)[-HOPS_MAX:]):
            address = _address(text)
            if address is None:
                return found
            found = str(address)
            if not _is_trusted(found, self.trusted):
                return found
        return found

    def _put_below_root(self, scope: Scope) -> None:
        root, path = self.root_path, scope["path"]
        if path != root and not path.startswith(f"{root}/"):
            scope["path"] = root + path
            scope["raw_path"] = root.encode() + (scope.get("raw_path") or b"")
        scope["root_path"] = root


def route_path(scope: Scope) -> str:
    """Return the path without the root path."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def client_address(scope: Scope) -> str:
    """Return the address of the client, or an empty text if there was no network."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _forwarding_headers(scope: Scope) -> dict[bytes, str]:
    """Return the forwarding headers. Repeated headers are joined in order."""
    found: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in (FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST):
            text = value.decode("latin-1")
            found[name] = f"{found[name]},{text}" if name in found else text
    return found


def _last(chain: str) -> str:
    """Return the last entry, which the nearest proxy has written. Only that proxy is known to be trusted."""
    return chain.rpartition(",")[2].strip()


@lru_cache(maxsize=1024)  # few proxies send many requests each
def _is_trusted(address: str, networks: tuple[Network, ...]) -> bool:
    found = _address(address)
    return found is not None and any(found in network for network in networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse `10.0.0.1`, `10.0.0.1:80`, `::1` or `[::1]:80`. Return `None` for any other text."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        found = ip_address(bare)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise SettingsError(
            f"a trusted proxy is an address or a network such as 10.0.0.0/8, not {text[:60]!r}: {error}"
        ) from None


def _root_path(text: str) -> str:
    path = text.strip().rstrip("/")
    if not path:
        return ""
    if not ROOT_PATH.fullmatch(path) or len(path) > ROOT_PATH_MAX_CHARS or {".", ".."} & set(path.split("/")):
        raise SettingsError(f"a root path is a path such as /magent2, not {text[:60]!r}")
    if path.split("/")[1] in RESERVED:
        raise SettingsError(
            f"the root path {path!r} begins like a route of the gateway; choose another, such as /magent2"
        )
    return path
