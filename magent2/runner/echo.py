"""The runner that needs no model: tokens, then exactly the input."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent

_PIECE = re.compile(r"\S+\s*|\s+")


def pieces(text: str) -> list[str]:
    """Words with the space after them; joined they are the text again, to the last character."""
    return _PIECE.findall(text)


class EchoRunner:
    """Answers every envelope with its own content."""

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[TokenEvent | OutputEvent]:
        text = envelope.content or ""
        for index, piece in enumerate(pieces(text)):
            yield TokenEvent(conversation_id=envelope.conversation_id, text=piece, index=index)
        yield OutputEvent(conversation_id=envelope.conversation_id, text=text)

    async def astream_run(
        self, envelope: MessageEnvelope, context: object | None = None
    ) -> AsyncIterator[TokenEvent | OutputEvent]:
        """The same events on a loop. There is nothing to wait for and nothing to journal, so `context` is not used."""
        for event in self.stream_run(envelope):
            yield event
