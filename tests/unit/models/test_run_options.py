"""Options of one message: what is accepted, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from magent2.errors import InvalidInput
from magent2.models.output_schema import SCHEMA_MAX_BYTES
from magent2.models.run_options import (
    CLIENT_TOOLS_MAX,
    NO_OPTIONS,
    RUN_OPTIONS,
    RunOptions,
    read_run_options,
)

CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "cold"}
HELLO = {"role": "user", "content": "hello"}


def test_a_message_without_options_has_none() -> None:
    assert read_run_options({}) is NO_OPTIONS
    assert NO_OPTIONS.payload() == {}


def test_options_are_stored_without_what_is_not_set() -> None:
    given = {"instructions": "Be brief.", "output_schema": {"schema": {"type": "object"}}, "input": [HELLO]}

    stored = RunOptions.model_validate(given).payload()

    assert stored == {**given, "output_schema": {"name": "output", "schema": {"type": "object"}, "strict": True}}
    assert RunOptions.model_validate(stored).payload() == stored


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("text", "run_options"),
        ({"colour": "red"}, "run_options.colour"),
        ({"model_settings": {"temperature": 3}}, "run_options.model_settings.temperature"),
        ({"model_settings": {"max_tokens": 0}}, "run_options.model_settings.max_tokens"),
        ({"tools": [{"name": "a b"}]}, "run_options.tools.0.name"),
        ({"tools": [{"name": "a"}, {"name": "a"}]}, "two tools have the same name"),
        ({"tools": [{"name": f"t{n}"} for n in range(CLIENT_TOOLS_MAX + 1)]}, "run_options.tools"),
        ({"tools": [{"name": "a", "parameters": {"x": "y" * SCHEMA_MAX_BYTES}}]}, "the parameters of tool 'a'"),
        ({"tools": [{"name": "a", "parameters": {"const": 2**64}}]}, "the schema cannot be stored"),
        ({"output_schema": {"schema": {"x": "y" * SCHEMA_MAX_BYTES}}}, "the schema of the output"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
        ({"input": [{"role": "judge", "content": "x"}]}, "the role of a message"),
        ({"input": [{"role": "user", "content": []}]}, "the content of a message"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "'video'"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "has a text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "file_id"),
        ({"input": [OUTPUT]}, "no function_call before it"),
        ({"input": [CALL]}, "no function_call_output for c1"),
        ({"input": [{**CALL, "name": ""}]}, "'call_id' and a 'name'"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given: Any, named: str) -> None:
    with pytest.raises(InvalidInput, match=named.replace("(", r"\(")):
        read_run_options({RUN_OPTIONS: given})


def test_calls_with_their_outputs_are_input() -> None:
    assert read_run_options({RUN_OPTIONS: {"input": [HELLO, CALL, OUTPUT]}}).input == [HELLO, CALL, OUTPUT]
