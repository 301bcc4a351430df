"""A run at a terminal: markdown that grows as the words come."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from magent2.cli.lines import call_of, what_of
from magent2.cli.printing import printable, safe
from magent2.client import ConversationEvent

REFRESH_PER_S = 12


class MarkdownScreen:
    """Prints events with rich, which honours NO_COLOR and the width of the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live: Live | None = None
        self._draft: object = None
        self._text = ""

    def show(self, event: ConversationEvent) -> None:
        if event.kind == "token":
            self._token(event)
        elif event.kind in ("output", "message"):
            self._whole(event)
        else:
            self._aside(event)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._draft, self._text = None, None, ""

    def _token(self, event: ConversationEvent) -> None:
        draft = event.data.get("message_id"), event.data.get("attempt")
        if draft != self._draft:
            self.close()
            self._draft = draft
            self._live = Live(console=self._console, refresh_per_second=REFRESH_PER_S, vertical_overflow="visible")
            self._live.start()
        self._text += event.text
        self._update(self._text)

    def _whole(self, event: ConversationEvent) -> None:
        if self._live is None:
            self._console.print(Markdown(safe(event.text)))
        else:
            self._update(event.text)
        self.close()

    def _update(self, text: str) -> None:
        if self._live is not None:
            self._live.update(Markdown(safe(text)))

    def _aside(self, event: ConversationEvent) -> None:
        if event.kind == "run" and event.data.get("status") in ("started", "finished"):
            return
        self.close()
        text = call_of(event.data) if event.kind == "tool_step" else what_of(event)
        self._console.print(f"[{printable(text)}]", style="dim", markup=False)
