"""What both clients ask of the HTTP library, and what its errors become."""

from __future__ import annotations

import time

import httpx2

from magent2.client.address import GatewayAddress
from magent2.errors import GatewayUnreachable

CONNECT_MAX_S = 5.0
ANSWER_MAX_S = 30.0
WAIT_PART_S = 20.0  # of a longer wait, in one request
SILENCE_MAX_S = 45.0  # on a stream, three heartbeats
EVENT_MAX_BYTES = 80 << 20  # above the largest payload that a log can be told to take

_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


def http_options(address: GatewayAddress) -> dict[str, object]:
    """A proxy of the environment is for other machines; certificates, which are slow to load, for `https`."""
    headers = {"Accept": "application/json, text/event-stream"}
    if address.token is not None:
        headers["Authorization"] = f"Bearer {address.token}"
    return {
        "base_url": address.url,
        "headers": headers,
        "timeout": httpx2.Timeout(ANSWER_MAX_S, connect=CONNECT_MAX_S),
        "trust_env": not address.is_here,
        "verify": address.is_encrypted,
        "limits": httpx2.Limits(max_connections=None),
    }


def stream_timeout(left_s: float | None) -> httpx2.Timeout:
    if left_s is None:
        return httpx2.Timeout(SILENCE_MAX_S, connect=CONNECT_MAX_S)
    return httpx2.Timeout(min(SILENCE_MAX_S, left_s), connect=min(CONNECT_MAX_S, left_s))


def lost(error: httpx2.TransportError, address: GatewayAddress) -> GatewayUnreachable:
    """No answer, in words that say what to do."""
    if isinstance(error, _NEVER_SENT):
        hint = "; 'magent2 serve' starts one" if address.is_here else ""
        return GatewayUnreachable(f"no gateway answers at {address.url}{hint}")
    return GatewayUnreachable(f"the connection to {address.url} was lost ({type(error).__name__})", sent=True)


class Deadline:
    """How long somebody waits in all, in parts that one request can wait."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def is_over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def part_s(self) -> float:
        return WAIT_PART_S if self._end is None else min(WAIT_PART_S, max(0.0, self._end - time.monotonic()))
