"""The time as text."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import TypeAdapter

from magent2.models.moment import utc_text


def test_it_is_what_pydantic_reads_and_writes() -> None:
    before = datetime.now(UTC)
    text = utc_text()
    after = datetime.now(UTC)

    adapter = TypeAdapter(datetime)
    moment = adapter.validate_python(text)

    assert before <= moment <= after
    assert moment.tzinfo is not None


def test_it_keeps_the_order_in_which_it_was_asked() -> None:
    texts = [utc_text() for _ in range(10_000)]

    assert texts == sorted(texts)
