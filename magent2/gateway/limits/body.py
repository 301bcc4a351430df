"""Read a JSON body of bounded size in bounded time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from magent2.gateway.limits.limits import GatewayLimits
from magent2.gateway.problems import Problem

CLOSE = {"connection": "close"}  # what is left of the body is not worth reading
LENGTH_MAX_DIGITS = 15
# Times the cap: so much of a body that is too large is read past, because who still sends hears nothing.
DRAINED_MAX = 4


async def read_body(scope: Scope, receive: Receive, limits: GatewayLimits) -> bytes:
    declared = header(scope, b"content-length")
    too_large = declared.isdigit() and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > limits.body_max_bytes)
    if too_large and (len(declared) > LENGTH_MAX_DIGITS or int(declared) > DRAINED_MAX * limits.body_max_bytes):
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_max_s):
            if too_large:
                await _read_past(receive)
                raise _too_large(limits)
            return await _read(receive, limits)
    except TimeoutError:
        raise Problem(
            408, "body_too_slow", f"the body did not arrive within {limits.body_max_s:g} s; send it again", CLOSE
        ) from None


async def _read(receive: Receive, limits: GatewayLimits) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "body_incomplete", "the connection ended within the body")
        body += message.get("body", b"")
        if len(body) > limits.body_max_bytes:
            raise _too_large(limits)
        if not message.get("more_body", False):
            return body


async def _read_past(receive: Receive) -> None:
    """A proxy that is cut off while it sends tells its client of a bad gateway, not of the answer that it got."""
    while (await receive()).get("more_body", False):
        pass


def _too_large(limits: GatewayLimits) -> Problem:
    return Problem(413, "too_large", f"a body takes at most {limits.body_max_bytes} bytes", CLOSE)


def check_json(scope: Scope) -> None:
    """Only a declared JSON body is read: a form of another site cannot declare one."""
    declared = header(scope, b"content-type").partition(b";")[0].strip().lower()
    if declared != b"application/json" and not (declared.startswith(b"application/") and declared.endswith(b"+json")):
        raise Problem(415, "not_json", "send JSON, with the header 'Content-Type: application/json'")


def header(scope: Scope, name: bytes) -> bytes:
    value: bytes
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""
