"""What a gateway takes, and for how long: every limit with its name and its unit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from magent2.settings import PAYLOAD_MAX_BYTES

BODY_MAX_BYTES = PAYLOAD_MAX_BYTES + (64 << 10)  # a payload that the bus just takes, and what JSON adds to it
TEXT_MAX_CHARS = 500_000
STREAMS_MAX = 5_000
CONNECTIONS_MAX = 8_000
DESCRIPTORS_KEPT = 128  # of the process's open files, for the bus and the house
HEADERS_MAX_S = 10.0
BODY_MAX_S = 30.0
SEND_MAX_S = 30.0
KEEP_ALIVE_S = 30.0
HEARTBEAT_S = 15.0
DRAIN_S = 10.0
RETRY_AFTER_S = 1  # what a client is told to wait when it may try again


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway."""

    body_max_bytes: int = BODY_MAX_BYTES
    text_max_chars: int = TEXT_MAX_CHARS
    streams_max: int = STREAMS_MAX
    connections_max: int = CONNECTIONS_MAX
    headers_max_s: float = HEADERS_MAX_S
    body_max_s: float = BODY_MAX_S
    send_max_s: float = SEND_MAX_S
    keep_alive_s: float = KEEP_ALIVE_S
    heartbeat_s: float = HEARTBEAT_S
    drain_s: float = DRAIN_S

    def with_connections(self, connections_max: int) -> Limits:
        return replace(self, connections_max=connections_max)
