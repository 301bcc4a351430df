"""The OpenAPI document, put to the test for long. To collect these takes seconds: only `make soak` does."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.unit.gateway import test_openapi, test_openapi_keys

EXAMPLES = 100  # per operation

pytestmark = pytest.mark.soak


@test_openapi.schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_whatever_the_document_allows_is_answered_however_much_is_tried(case: schemathesis.Case[Any]) -> None:
    test_openapi.check(case)


@test_openapi_keys.schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_every_generated_request_with_a_key_is_answered_as_the_document_says(case: schemathesis.Case[Any]) -> None:
    test_openapi_keys.check(case)
