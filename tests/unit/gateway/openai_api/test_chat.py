"""Chunks of a chat completion whose run is started again in the middle of its text."""

from __future__ import annotations

import pytest

from magent2.gateway.openai_api.chat import NOT_CONTINUED, ChatChunks
from magent2.gateway.openai_api.mapping import ResponseMapping
from tests.unit.gateway.openai_api.test_mapping import (
    FINISHED,
    ID,
    OUTPUT,
    QUESTION,
    RESTARTED,
    STARTED,
    facts,
    records,
    token,
)


@pytest.mark.parametrize(
    ("first", "second", "text", "error"),
    [
        (["one "], ["one ", "two"], "one two", None),
        (["one two"], ["one"], "one two", None),  # the end of the text says that nothing is missing
        (["one ", "t"], ["o", "ne two"], "one two", None),
        (["one ", "three"], ["one ", "two"], "one three", NOT_CONTINUED),
        (["other"], [], "other", NOT_CONTINUED),  # the tokens were not written yet when the stream ended
    ],
)
def test_a_text_that_is_begun_again_is_continued_only_if_it_begins_the_same(
    first: list[str], second: list[str], text: str, error: str | None
) -> None:
    mapping = ResponseMapping(ID, facts())
    chunks = ChatChunks(mapping, with_usage=False)
    stream = records(QUESTION, STARTED, *map(token, first), RESTARTED, *map(token, second), OUTPUT, FINISHED)

    found = [chunk for record in stream for event in mapping.take(record) for chunk in chunks.chunks(event)]

    contents = [chunk["choices"][0]["delta"].get("content") or "" for chunk in found if "choices" in chunk]
    errors = [chunk["error"]["message"] for chunk in found if "error" in chunk]
    assert "".join(contents) == text
    assert errors == ([] if error is None else [error])
