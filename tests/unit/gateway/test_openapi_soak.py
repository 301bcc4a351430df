"""The OpenAPI document, put to the test for long."""

from __future__ import annotations

import pytest

from tests.support.openapi_cases import operations, run_cases
from tests.unit.gateway import test_openapi, test_openapi_keys

EXAMPLES = 100  # per operation

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("operation", operations(test_openapi.schema))
def test_whatever_the_document_allows_is_answered_however_much_is_tried(operation: str) -> None:
    run_cases(test_openapi.schema, operation, test_openapi.check, EXAMPLES)


@pytest.mark.parametrize("operation", operations(test_openapi_keys.schema))
def test_every_generated_request_with_a_key_is_answered_as_the_document_says(operation: str) -> None:
    run_cases(test_openapi_keys.schema, operation, test_openapi_keys.check, EXAMPLES)
