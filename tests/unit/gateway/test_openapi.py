"""The OpenAPI document, put to the test: whatever it allows is answered, and as it says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Delete
from magent2.bus.records import NewRecord
from magent2.gateway.app import create_app
from magent2.gateway.limits import DEFAULT_RATES, GatewayLimits, RequestRate
from magent2.gateway.streaming.sse import CURSOR_MAX, MAX_EVENTS_MAX
from tests.support.keys import ACCESS, create_key_holder
from tests.support.openapi_cases import operations, run_cases

EXAMPLES = 2  # per operation; 100 in the soak form
QUICK = GatewayLimits(wait_max_s=0.01, route_max_s=0.01)  # nobody is there to answer
UNLIMITED = replace(QUICK, rates=dict.fromkeys(DEFAULT_RATES, RequestRate(per_s=1e6, burst=1_000_000)))
GONE, THERE = "gone", "one"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def _bus() -> MemoryBus:
    bus = MemoryBus()
    bus.call(Append(records=(NewRecord("stream:one", {"event": "token", "conversation_id": "one", "text": "x"}),)))
    bus.call(Delete((f"stream:{GONE}", f"chat:{GONE}"), conversation=GONE))
    return bus


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(_bus(), limits=QUICK))

bus_with_keys = _bus()
ann = asyncio.run(create_key_holder(bus_with_keys, "user:ann"))
app_with_keys = create_app(bus_with_keys, access=ACCESS, limits=UNLIMITED)


def bound(case: schemathesis.Case[Any]) -> None:
    """Have a stream end by itself; what cannot be answered is left as it is."""
    if case.path == "/stream/{conversation_id}":  # one that does not exist is waited for; one that is gone ends
        case.path_parameters = {"conversation_id": GONE}
    if not case.path.endswith("/stream"):
        return
    query = case.query = dict(case.query or {})
    if _is_number(query.get("max_events", 1), MAX_EVENTS_MAX):
        query["max_events"] = 1
    for place, name in ((query, "since"), (case.headers, "last-event-id")):
        if _is_number(place.get(name), CURSOR_MAX):  # behind the last record there is nothing to end with
            place[name] = "0"


def _is_number(value: object, most: int) -> bool:
    text = str(value).strip()
    return text.isascii() and text.isdigit() and 0 < int(text) <= most


@pytest.mark.parametrize("operation", operations(schema))
def test_whatever_the_document_allows_is_answered_as_it_says(operation: str) -> None:
    run_cases(schema, operation, check, EXAMPLES)


def check(case: schemathesis.Case[Any]) -> None:
    """Send a case to a gateway that requires keys, with a key, and to one that does not."""
    bound(case)
    if isinstance(case.body, dict) and isinstance(case.body.get("session_id"), str):
        case.body["session_id"] = THERE
    case.call_and_validate(app=app_with_keys, headers=ann.headers, checks=CHECKS)

    if case.path.startswith("/api/sdk/session/{session_id}") and case.method != "DELETE":
        case.path_parameters = {**(case.path_parameters or {}), "session_id": THERE}
    case.call_and_validate(checks=CHECKS)


def test_the_document_does_not_depend_on_whether_keys_are_required() -> None:
    with_keys = schemathesis.openapi.from_asgi("/openapi.json", app_with_keys)

    assert with_keys.raw_schema == schema.raw_schema
