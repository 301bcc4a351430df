"""The OpenAPI document as somebody with a key meets it: never a failure, never an answer that it does not name."""

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

from magent2.gateway.app import create_app
from magent2.gateway.limits import DEFAULT_RATES, RequestRate
from tests.support.keys import ACCESS, KeyHolder, create_key_holder
from tests.support.openapi_cases import operations, run_cases
from tests.unit.gateway.test_openapi import EXAMPLES, QUICK, THERE, _bus, bound

BUS = _bus()
ANN: KeyHolder = asyncio.run(create_key_holder(BUS, "user:ann"))
LIMITS = replace(QUICK, rates=dict.fromkeys(DEFAULT_RATES, RequestRate(per_s=1e6, burst=1_000_000)))
schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(BUS, access=ACCESS, limits=LIMITS))


@pytest.mark.parametrize("operation", operations(schema))
def test_requests_with_a_key_are_answered_as_the_document_says(operation: str) -> None:
    run_cases(schema, operation, check, EXAMPLES)


def check(case: schemathesis.Case[Any]) -> None:
    bound(case)
    if isinstance(case.body, dict) and isinstance(case.body.get("session_id"), str):
        case.body["session_id"] = THERE

    case.call_and_validate(
        headers=ANN.headers,
        checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance],
    )
