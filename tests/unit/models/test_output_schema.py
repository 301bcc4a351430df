"""Schemas of answers: what matches, what is refused, and what hostile ones cannot do."""

from __future__ import annotations

import itertools
import json
import socket
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from magent2.errors import InvalidInput
from magent2.models.output_schema import (
    ENDLESS,
    OUTPUT_SCHEMA_MAX_DEPTH,
    OUTPUT_SCHEMA_MAX_SCHEMAS,
    SCHEMA_MAX_BYTES,
    TOO_MUCH_WORK,
    check_output_schema,
    output_fault,
)

BILL = {
    "type": "object",
    "properties": {"total": {"type": "number"}, "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
    "required": ["total"],
    "additionalProperties": False,
    "$defs": {"line": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}},
}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"total": 7}', None),
        ('{"total": 7, "lines": ["tea"]}', None),
        ('{"total": "7"}', "$.total: '7' is not of type 'number'"),
        ("{}", "$: 'total' is a required property"),
        ('{"total": 7, "tip": 1}', "$: Additional properties are not allowed ('tip' was unexpected)"),
        ('{"total": 7, "lines": ["Tea"]}', "$.lines[0]: 'Tea' does not match '^[a-z]+$'"),
        ('{"total": 7, "lines": ["coffee"]}', "$.lines[0]: 'coffee' is too long"),
        ("seven", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('```json\n{"total": 7}\n```', "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"total": NaN}', "it is not JSON: NaN is not a JSON value"),
        ("", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_an_answer_is_checked(text: str, fault: str | None) -> None:
    check_output_schema(BILL)

    assert output_fault(BILL, text) == fault


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """A schema of few bytes whose check takes 2 ** levels steps."""
    names = [f"d{number}" for number in range(levels)]
    twice = {name: {"allOf": [{"$ref": f"#/$defs/{after}"}] * 2} for name, after in itertools.pairwise(names)}
    return {"$defs": {**twice, names[-1]: {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"description": "x" * SCHEMA_MAX_BYTES}, f"the limit is {SCHEMA_MAX_BYTES}"),
        ({"const": 2**64}, "the schema cannot be stored: Integer exceeds 64-bit range"),
        (nested(OUTPUT_SCHEMA_MAX_DEPTH + 1), f"more than {OUTPUT_SCHEMA_MAX_DEPTH} levels"),
        ({"anyOf": [{}] * OUTPUT_SCHEMA_MAX_SCHEMAS}, f"more than {OUTPUT_SCHEMA_MAX_SCHEMAS} schemas"),
        ({"type": "nothing"}, "it is not a JSON Schema: 'nothing' is not valid"),
        ({"$ref": "#/$defs/missing"}, "$ref '#/$defs/missing' does not name a schema of this document"),
        ({"$ref": "#/default", "default": {"patternProperties": {}}}, "$ref '#/default' does not name a schema"),
        ({"$ref": "other.json"}, "$ref 'other.json' does not name a schema of this document"),
        ({"items": {"$ref": "file:///etc/passwd"}}, "$ref 'file:///etc/passwd' does not name a schema"),
        ({"$ref": "#"}, ENDLESS),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, ENDLESS),
        (doubling(40), TOO_MUCH_WORK),
        ({"pattern": "(("}, "pattern '((' is not a regular expression"),
        ({"patternProperties": {"^(a+)+$": {}}}, "the keyword 'patternProperties' is not supported"),
        ({"properties": {"a": {"unevaluatedItems": False}}}, "the keyword 'unevaluatedItems' is not supported"),
        ({"properties": {"a": {"$id": "http://example.org/"}}}, "the keyword '$id' is not supported"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_by_name(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_output_schema(schema)

    assert message in str(refused.value)


def test_no_reference_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        for schema in ({"$ref": address}, {"$id": address, "$ref": "#/$defs/x"}, {"$schema": address}):
            with suppress(InvalidInput):  # refused or checked, but not fetched
                check_output_schema(schema)
                output_fault(schema, "{}")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_catastrophic_pattern_takes_linear_time() -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    check_output_schema(schema)

    fault = output_fault(schema, json.dumps("a" * 100_000 + "!"))  # Python's engine would take longer than the universe

    assert fault is not None
    assert fault.startswith("$: 'aaaa")
    assert len(fault) == 300


def test_a_pattern_that_looks_ahead_is_accepted_and_not_checked() -> None:
    class Price(BaseModel):
        amount: Decimal

    schema = Price.model_json_schema()  # its pattern looks ahead

    check_output_schema(schema)
    assert output_fault(schema, '{"amount": "1.50"}') is None


def test_names_of_properties_are_not_keywords() -> None:
    schema = {"type": "object", "properties": {"$ref": {"type": "string"}, "patternProperties": {"type": "integer"}}}

    check_output_schema(schema)
    assert output_fault(schema, '{"$ref": "http://x", "patternProperties": 1}') is None


@pytest.mark.parametrize(
    ("schema", "text", "fault"),
    [
        ({"items": {"$ref": "#"}}, "[" * 5000 + "]" * 5000, ENDLESS),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, '{"a": 1}', ENDLESS),
        ({"items": {"enum": [str(n) for n in range(5000)]}}, json.dumps(["4999"] * 5000), TOO_MUCH_WORK),
        ({"uniqueItems": True}, json.dumps([{"a": n} for n in range(20_000)]), None),
        ({"uniqueItems": True}, '[{"a": 1}, {"a": 1}]', "$: it has non-unique elements"),
    ],
)
def test_the_work_of_a_check_is_limited(schema: dict[str, Any], text: str, fault: str | None) -> None:
    check_output_schema(schema)

    assert output_fault(schema, text) == fault
