"""The OpenAPI document, put to the test: whatever it allows is answered, and as it says."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
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

EXAMPLES = 25  # per operation
GONE = "gone"


def _bus() -> MemoryBus:
    bus = MemoryBus()
    bus.call(Append(records=(NewRecord("stream:one", {"event": "token", "conversation_id": "one", "text": "x"}),)))
    bus.call(Delete((f"stream:{GONE}", f"chat:{GONE}"), conversation=GONE))
    return bus


schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(_bus()))


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_whatever_the_document_allows_is_answered_as_it_says(case: schemathesis.Case[Any]) -> None:
    if case.path == "/stream/{conversation_id}":  # a stream of a conversation that is gone ends by itself
        case.path_parameters = {"conversation_id": GONE}

    case.call_and_validate(
        checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    )
