"""Bodies of HTTP requests: size, time, media type and JSON."""

from __future__ import annotations

import asyncio

import orjson
from starlette.types import Receive, Scope

from magent2.gateway.limits import GatewayLimits
from magent2.gateway.problems import Problem

CLOSE = {"connection": "close"}  # the rest of the body is not read
LENGTH_MAX_DIGITS = 15
# A body of up to this many times the limit is read to its end before it is refused: a client or proxy that is still
# sending when the connection closes reports a connection error (a proxy: 502), not our 413.
DISCARD_FACTOR = 4


async def read_body(scope: Scope, receive: Receive, limits: GatewayLimits) -> bytes:
    """Read a body of bounded size in bounded time."""
    declared = header(scope, b"content-length")
    too_large = declared.isdigit() and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > limits.body_max_bytes)
    if too_large and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > DISCARD_FACTOR * limits.body_max_bytes):
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_max_s):
            if too_large:
                while (await receive()).get("more_body", False):
                    pass
                raise _too_large(limits)
            return await _read(receive, limits)
    except TimeoutError:
        raise Problem.body_too_slow(limits.body_max_s) from None


async def _read(receive: Receive, limits: GatewayLimits) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "body_incomplete", "the connection closed within the body; send it again")
        body += message.get("body", b"")
        if len(body) > limits.body_max_bytes:
            raise _too_large(limits)
        if not message.get("more_body", False):
            return body


def _too_large(limits: GatewayLimits) -> Problem:
    return Problem(413, "too_large", f"a body takes at most {limits.body_max_bytes} bytes", CLOSE)


def check_json(scope: Scope) -> None:
    """Refuse a body that is not declared as JSON. A form of another site cannot declare JSON."""
    declared = header(scope, b"content-type").partition(b";")[0].strip().lower()
    if declared != b"application/json" and not (declared.startswith(b"application/") and declared.endswith(b"+json")):
        raise Problem(415, "not_json", "send JSON, with the header 'Content-Type: application/json'")


def check_json_values(body: bytes) -> None:
    """Refuse what pydantic's parser takes although JSON does not have it: NaN, infinity, and 1e400, which overflows.

    The log could not store these values. Lists and texts may contain such words, so only a strict parser can tell.
    """
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, "bad_json", f"the body is not JSON: {error}") from None


def header(scope: Scope, name: bytes) -> bytes:
    value: bytes
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""
