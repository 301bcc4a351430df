"""The estimate of tokens before a model counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.runner.tokens import CORRECTION_MAX, CORRECTION_MIN, IMAGE_TOKENS, correction_of, estimate_tokens

ENGLISH = "The quick brown fox jumps over the lazy dog. " * 20  # about 200 tokens of OpenAI's models
CHINESE = "\u4f60\u597d\u4e16\u754c" * 50  # about 100

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("text", "counted"), [(ENGLISH, 200), (CHINESE, 100)])
def test_the_estimate_of_a_text_is_of_the_size_that_a_tokenizer_counts(text: str, counted: int) -> None:
    assert counted / 2 <= estimate_tokens(text) <= counted * 2


@given(json_values, json_values)
def test_more_input_takes_at_least_as_many_tokens(first: object, second: object) -> None:
    assert 0 <= estimate_tokens([first]) <= estimate_tokens([first, second])


def test_an_image_counts_as_an_image_and_not_as_its_bytes() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1_000_000}

    assert estimate_tokens([{"role": "user", "content": [image]}]) < 2 * IMAGE_TOKENS


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64," + "A" * 400_000},
        {"type": "input_audio", "input_audio": {"data": "A" * 400_000, "format": "wav"}},
    ],
)
def test_a_file_counts_less_than_text_of_its_size(part: dict[str, object]) -> None:
    assert 0 < estimate_tokens(part) < estimate_tokens("A" * 400_000) / 5


def test_an_item_counts_its_text_its_arguments_and_its_output() -> None:
    call = {"type": "function_call", "call_id": "c" * 400, "name": "look", "arguments": "a" * 400}
    result = {"type": "function_call_output", "call_id": "c" * 400, "output": "b" * 800}

    assert 100 <= estimate_tokens([call]) <= 110
    assert 200 <= estimate_tokens([result]) <= 210


def test_the_schema_of_a_tool_counts() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": "x" * 400}}}

    assert estimate_tokens(schema) > 100


@pytest.mark.parametrize(
    ("reported", "estimated", "factor"),
    [(0, 10, 1.0), (10, 0, 1.0), (20, 10, 2.0), (10**9, 1, CORRECTION_MAX), (1, 10**9, CORRECTION_MIN)],
)
def test_what_a_model_reports_corrects_the_estimate(reported: int, estimated: int, factor: float) -> None:
    assert correction_of(reported, estimated) == factor
    assert estimate_tokens("x" * 400, factor) == 100 * factor
