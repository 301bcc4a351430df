"""The echo runner: answers with the input, without a model."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator

from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent
from magent2.models.files import text_with_attachments

_PIECE = re.compile(r"\S+\s*|\s+")


def pieces(text: str) -> list[str]:
    """The words of a text, each with the space after it. Joined, they are the text again."""
    return _PIECE.findall(text)


class EchoRunner:
    """Answers every envelope with its content and the names of its files: as tokens, then as output."""

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[TokenEvent | OutputEvent]:
        text = text_with_attachments(envelope.content or "", envelope.metadata)
        for index, piece in enumerate(pieces(text)):
            yield TokenEvent(conversation_id=envelope.conversation_id, text=piece, index=index)
        yield OutputEvent(conversation_id=envelope.conversation_id, text=text)

    async def astream_run(
        self, envelope: MessageEnvelope, context: object | None = None
    ) -> AsyncGenerator[TokenEvent | OutputEvent, None]:
        """The same events on a loop. `context` is not used: there is nothing to journal."""
        for event in self.stream_run(envelope):
            yield event
