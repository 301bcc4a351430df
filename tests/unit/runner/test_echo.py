from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magent2.models.envelope import MessageEnvelope
from magent2.runner.echo import EchoRunner, pieces


@given(st.text())
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert all(pieces(text))


async def test_the_sync_and_the_async_method_yield_the_same_events() -> None:
    message = MessageEnvelope(conversation_id="c", sender="user:ann", recipient="agent:Dev", content="one two")

    found = [event async for event in EchoRunner().astream_run(message, context=None)]

    assert [event.text for event in found] == [event.text for event in EchoRunner().stream_run(message)]


def test_an_envelope_without_content_gets_an_empty_answer() -> None:
    (output,) = EchoRunner().stream_run(MessageEnvelope(conversation_id="c", sender="u", recipient="agent:Dev"))

    assert output.text == ""
