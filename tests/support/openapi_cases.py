"""Runs the cases that schemathesis makes from an OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.core.result import Err
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.schemas import APIOperation, BaseSchema

CaseCheck = Callable[[schemathesis.Case[Any]], None]


def operations(schema: BaseSchema) -> dict[str, APIOperation[Any, Any, Any, Any]]:
    """The operations of a document by their labels, such as `GET /health`. Raises InvalidSchema."""
    found = {}
    for result in schema.get_all_operations():
        if isinstance(result, Err):
            raise result.err()
        operation = result.ok()
        found[operation.label] = operation
    return found


def run_cases(schema: BaseSchema, label: str, check: CaseCheck, examples: int) -> None:
    """Check every case of an operation: those that cover its schema, and `examples` generated ones.

    It does what `schema.parametrize` does, but when the test runs. That makes all cases of all operations when tests
    are collected, which took every test process 6 s.
    """

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    def run(case: schemathesis.Case[Any]) -> None:
        check(case)

    feedback = FeedbackSources(constants_value_source=make_constants_value_source(schema))
    build_operation_test(
        config=schema.config, operation=operations(schema)[label], test_func=run, given_kwargs={}, feedback=feedback
    )()
