"""The limits of a gateway, each with a name and a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from magent2.sessions.files import (
    FILE_MAX_BYTES,
    FILES_PER_PRINCIPAL_MAX,
    FILES_PER_PRINCIPAL_MAX_BYTES,
    FileLimits,
)
from magent2.sessions.queue_depth import QUEUE_MAX_MESSAGES
from magent2.sessions.schedules.store import SCHEDULES_PER_PRINCIPAL_MAX
from magent2.sessions.schedules.timing import INTERVAL_MIN_S
from magent2.settings import PAYLOAD_MAX_BYTES

BODY_MAX_BYTES = PAYLOAD_MAX_BYTES + (64 << 10)  # the largest payload of the bus, and room for what JSON adds to it
INLINE_BODY_MAX_BYTES = 32 << 20  # of a request of `/v1`, which may contain files
TEXT_MAX_CHARS = 500_000
STREAMS_MAX = 5_000
STREAMS_PER_PRINCIPAL_MAX = 100
CONNECTIONS_MAX = 8_000
CONNECTIONS_PER_ADDRESS_MAX = 1_000  # of one address, or of one /64 network of IPv6; trusted proxies have no such limit
PROBE_CONNECTIONS = 16  # beyond the limits, for requests of /health and /ready only
PROBE_HEAD_MAX_S = 2.0  # for the head of a request on such a connection
DESCRIPTORS_KEPT = 128  # open files reserved for the bus, probes and other uses
HEAD_MAX_BYTES = 64 << 10  # request line and headers; trailers have the same limit
TARGET_MAX_BYTES = 32 << 10  # path and query of a request
HEADERS_MAX = 100  # headers of one request
PIPELINED_MAX_REQUESTS = 32  # that wait on one connection for the response before them
HEADERS_MAX_S = 10.0
BODY_MAX_S = 30.0
UPLOAD_MAX_S = 300.0  # for the body of a file
BODY_GRACE_S = 1.0  # after `body_max_s`, for the route that reads the body to answer by itself
CLOSE_LINGER_S = 2.0  # during which the rest of a request is discarded after an early response
SEND_MAX_S = 30.0
KEEP_ALIVE_S = 30.0
HEARTBEAT_S = 15.0
DRAIN_S = 10.0
WAIT_MAX_S = 60.0  # for the reply to a message, before the response is 202
RESPONSE_WAIT_MAX_S = 600.0  # for a response of `/v1`, as OpenAI's clients wait
ROUTE_MAX_S = 20.0  # for a supervisor's decision, before keywords decide
RETRY_AFTER_S = 1  # the usual Retry-After header

RouteKind: TypeAlias = Literal["send", "write", "read", "stream"]


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A rate limit: requests per second on average, and how many at once after a pause."""

    per_s: float
    burst: int


DEFAULT_RATES: Mapping[RouteKind, RequestRate] = {
    "send": RequestRate(per_s=20.0, burst=100),  # messages and tool calls, each of which may start a run
    "write": RequestRate(per_s=10.0, burst=50),  # all other requests that change something
    "read": RequestRate(per_s=50.0, burst=200),
    "stream": RequestRate(per_s=5.0, burst=50),  # streams that are opened
}


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The limits of one gateway."""

    body_max_bytes: int = BODY_MAX_BYTES
    inline_body_max_bytes: int = INLINE_BODY_MAX_BYTES
    text_max_chars: int = TEXT_MAX_CHARS
    file_max_bytes: int = FILE_MAX_BYTES
    files_per_principal_max_bytes: int = FILES_PER_PRINCIPAL_MAX_BYTES
    files_per_principal_max: int = FILES_PER_PRINCIPAL_MAX
    schedules_per_principal_max: int = SCHEDULES_PER_PRINCIPAL_MAX
    schedule_interval_min_s: float = INTERVAL_MIN_S
    streams_max: int = STREAMS_MAX
    streams_per_principal_max: int = STREAMS_PER_PRINCIPAL_MAX
    queue_max_messages: int = QUEUE_MAX_MESSAGES
    connections_max: int = CONNECTIONS_MAX
    connections_per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX
    head_max_bytes: int = HEAD_MAX_BYTES
    target_max_bytes: int = TARGET_MAX_BYTES
    headers_max: int = HEADERS_MAX
    headers_max_s: float = HEADERS_MAX_S
    body_max_s: float = BODY_MAX_S
    upload_max_s: float = UPLOAD_MAX_S
    send_max_s: float = SEND_MAX_S
    keep_alive_s: float = KEEP_ALIVE_S
    heartbeat_s: float = HEARTBEAT_S
    drain_s: float = DRAIN_S
    wait_max_s: float = WAIT_MAX_S
    response_wait_max_s: float = RESPONSE_WAIT_MAX_S
    route_max_s: float = ROUTE_MAX_S
    rates: Mapping[RouteKind, RequestRate] = field(default_factory=lambda: DEFAULT_RATES)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GatewayLimits:
        """Return the limits of the agents file or the environment. Limits of other components are ignored."""
        own = {one.name for one in fields(cls)} - {"rates"}
        rates = {
            kind: RequestRate(float(values.get(f"{kind}_per_s", rate.per_s)), values.get(f"{kind}_burst", rate.burst))
            for kind, rate in DEFAULT_RATES.items()
        }
        return cls(**{name: value for name, value in values.items() if name in own}, rates=rates)

    @property
    def files(self) -> FileLimits:
        return FileLimits(self.file_max_bytes, self.files_per_principal_max_bytes, self.files_per_principal_max)

    def with_connections(self, connections_max: int) -> GatewayLimits:
        return replace(self, connections_max=connections_max)
