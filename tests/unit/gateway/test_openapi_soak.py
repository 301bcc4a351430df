"""The OpenAPI document, put to the test for long."""

from __future__ import annotations

import pytest

from tests.support.openapi_cases import operations, run_cases
from tests.unit.gateway.test_openapi import check, schema

EXAMPLES = 100  # per operation

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("operation", operations(schema))
def test_whatever_the_document_allows_is_answered_however_much_is_tried(operation: str) -> None:
    run_cases(schema, operation, check, EXAMPLES)
