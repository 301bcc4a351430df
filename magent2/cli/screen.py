"""A run as it happens, on a plain terminal or in a pipe: words as they come, everything else in lines between them."""

from __future__ import annotations

from magent2.cli.lines import call_of, what_of
from magent2.cli.printing import note, safe, say
from magent2.client import ConversationEvent


class Screen:
    """Prints events. Text goes to stdout, what happens around it to stderr."""

    def __init__(self) -> None:
        self._message: object = None  # whose words are being printed
        self._shown = ""

    def show(self, event: ConversationEvent) -> None:
        if event.kind == "token":
            self._token(event)
        elif event.kind in ("output", "message"):
            self._whole(event)
        else:
            self._aside(event)

    def close(self) -> None:
        """End the line that is being written."""
        if self._message is not None:
            say()
        self._message, self._shown = None, ""

    def _token(self, event: ConversationEvent) -> None:
        message = _draft_of(event)
        if message != self._message:
            self.close()
            self._message = message
        self._shown += event.text
        say(safe(event.text), newline=False)

    def _whole(self, event: ConversationEvent) -> None:
        """The text that contains the words; printed only where they were not."""
        if self._message is not None and self._shown != event.text:
            self.close()
        if self._message is None:
            say(safe(event.text))
        else:
            self.close()

    def _aside(self, event: ConversationEvent) -> None:
        text = _aside_of(event)
        if text:
            self.close()
            note(safe(text))


def _draft_of(event: ConversationEvent) -> object:
    """Tokens of another attempt are the same words again."""
    return event.data.get("message_id"), event.data.get("attempt")


def _aside_of(event: ConversationEvent) -> str:
    if event.kind == "tool_step":
        return f"  [{call_of(event.data)}]"
    if event.kind == "run" and event.data.get("status") in ("started", "finished"):
        return ""
    return f"  [{what_of(event)}]"
