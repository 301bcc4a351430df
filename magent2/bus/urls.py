"""Split the URLs of buses, which may name several hosts."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

_NETLOC = re.compile(r"[^/?#]*")


def split_bus_url(url: str) -> SplitResult:
    """Split a URL whose hosts are separated by commas. Raises `ValueError` for a host with unmatched brackets.

    Newer releases of Python refuse an IPv6 address in a list of hosts (`h1,[::1]`), so each host is checked alone.
    """
    scheme, separator, rest = url.partition("://")
    netloc = _NETLOC.match(rest)
    if not separator or netloc is None or "," not in netloc.group():
        return urlsplit(url)
    for host in netloc.group().rpartition("@")[2].split(","):
        urlsplit(f"//{host}")
    return urlsplit(f"{scheme}://{rest[netloc.end() :]}")._replace(netloc=netloc.group())
