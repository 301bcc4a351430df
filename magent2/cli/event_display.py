"""Shows the events of a conversation to a person: one line per event, or a run as it happens."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from magent2.cli.output import print_data, print_note, printable, safe, shortened

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from magent2.client import ConversationEvent

ARGUMENTS_MAX_CHARS = 100
RESULT_MAX_CHARS = 200
REFRESH_PER_S = 12

EventData = Mapping[str, object]


# --- one event as text


def event_line(event: ConversationEvent) -> str:
    """An event on one line: sequence number, time, text, as in `    7 12:04:01 general: hello`."""
    clock = str(event.data.get("created_at") or "")[11:19].ljust(8)
    return f"{event.seq:>5} {clock} {printable(event_text(event))}"


def event_text(event: ConversationEvent) -> str:
    describe = _DESCRIPTIONS.get(event.kind)
    if describe is None:
        return f"{event.kind} {shortened(json.dumps(dict(event.data)), RESULT_MAX_CHARS)}"
    return describe(event.data)


def tool_step_text(data: EventData) -> str:
    """The call of a tool, its result, or its error."""
    status, name = data.get("status"), data.get("name")
    if status == "start":
        return f"calls {name} {_arguments(data)}"
    if status == "error":
        return f"{name} failed: {shortened(_str(data, 'error'), RESULT_MAX_CHARS)}"
    return f"{name} → {shortened(_str(data, 'result_summary'), RESULT_MAX_CHARS)}"


def _str(data: EventData, field: str) -> str:
    return str(data.get(field) or "")


def _arguments(data: EventData) -> str:
    return shortened(json.dumps(data.get("args") or {}), ARGUMENTS_MAX_CHARS)


def _agent(data: EventData) -> str:
    return _str(data, "agent") or "agent"


def _spoken(data: EventData) -> str:
    return f"{_agent(data)}: {_str(data, 'text')}"


def _run(data: EventData) -> str:
    reason = f" ({data['reason']})" if data.get("reason") else ""
    return f"{_agent(data)} run {data.get('status')}{reason}"


def _receipt(data: EventData) -> str:
    messages = data.get("messages")
    outcomes = [f"{one['source']} {one['outcome']}" for one in messages] if isinstance(messages, list) else []
    return f"{_agent(data)} received: {', '.join(outcomes)}"


def _approval(data: EventData) -> str:
    call = f"{data.get('name')} {_arguments(data)} ({data.get('tool_call_id')})"
    if data.get("status") == "requested":
        return f"{_agent(data)} needs approval for {call}"
    by = f" by {data['decided_by']}" if data.get("decided_by") else ""
    reason = f": {data['reason']}" if data.get("reason") else ""
    return f"{data.get('status')}{by}: {call}{reason}"


def _block(data: EventData) -> str:
    held = f", {data.get('sent')} of {data['held']} messages sent" if data.get("held") else ""
    return f"{_agent(data)} ran a Python block: {data.get('status')}{held}"


def _subagent(data: EventData) -> str:
    task = shortened(_str(data, "task"), RESULT_MAX_CHARS)
    return f"{_agent(data)} started {data.get('name')} in {data.get('subagent_id')}: {task}"


def _error(data: EventData) -> str:
    retry_s = data.get("retry_in_s")
    retry = f" (retry in {retry_s:g} s)" if isinstance(retry_s, int | float) else ""
    return f"error {data.get('code')}: {data.get('message')}{retry}"


_DESCRIPTIONS: Mapping[str, Callable[[EventData], str]] = {
    "user_message": lambda data: f"{data.get('sender')} → {data.get('recipient')}: {_str(data, 'text')}",
    "token": _spoken,
    "output": _spoken,
    "message": _spoken,
    "tool_step": lambda data: f"{_agent(data)} {tool_step_text(data)}",
    "message_received": _receipt,
    "approval": _approval,
    "block": _block,
    "subagent": _subagent,
    "run": _run,
    "handoff": lambda data: f"{_str(data, 'source') or 'no agent'} hands over to {data.get('target')}",
    "session": lambda data: f"conversation {data.get('status')}",
    "error": _error,
    "gap": lambda data: f"gap: events up to {data.get('floor')} have been deleted",
    "end": lambda data: f"end: {data.get('reason')}",
}


# --- a run as it happens


class EventDisplay(ABC):
    """Shows the events of a run, each as it arrives."""

    def __init__(self) -> None:
        self._draft: tuple[object, object] | None = None  # the text whose tokens are being shown
        self._text = ""  # what has been shown of it

    def show(self, event: ConversationEvent) -> None:
        if event.kind == "token":
            # A retry (another attempt) streams the same message from its beginning.
            draft = (event.data.get("message_id"), event.data.get("attempt"))
            if draft != self._draft:
                self.close()
                self._draft = draft
            self._text += event.text
            self._show_token(event.text)
        elif event.kind in ("output", "message"):
            self._show_text(event.text)
        elif event.kind != "run" or event.data.get("status") not in ("started", "finished"):
            self.close()
            self._show_notice(tool_step_text(event.data) if event.kind == "tool_step" else event_text(event))

    def close(self) -> None:
        """End the text that is being shown."""
        self._draft, self._text = None, ""

    @abstractmethod
    def _show_token(self, token: str) -> None:
        """Show one more token of the draft; `_text` includes it."""

    @abstractmethod
    def _show_text(self, text: str) -> None:
        """Show a complete text. If it was the draft, it replaces the draft."""

    @abstractmethod
    def _show_notice(self, notice: str) -> None:
        """Show an event that carries no text of the agent."""


class PlainDisplay(EventDisplay):
    """Shows a run on a plain terminal or in a pipe. Text goes to stdout, notices go to stderr."""

    def close(self) -> None:
        if self._draft is not None:
            print_data()
        super().close()

    def _show_token(self, token: str) -> None:
        print_data(safe(token), newline=False)

    def _show_text(self, text: str) -> None:
        already_printed = self._draft is not None and self._text == text
        self.close()
        if not already_printed:
            print_data(safe(text))

    def _show_notice(self, notice: str) -> None:
        print_note(safe(f"  [{notice}]"))


class MarkdownDisplay(EventDisplay):
    """Shows a run at a terminal as Markdown that is rendered again with each token."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console  # honours NO_COLOR and the width of the terminal

        super().__init__()
        self._console = console or Console(highlight=False)
        self._live: Live | None = None

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        super().close()

    def _show_token(self, token: str) -> None:
        from rich.live import Live
        from rich.markdown import Markdown

        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=REFRESH_PER_S, vertical_overflow="visible")
            self._live.start()
        self._live.update(Markdown(safe(self._text)))

    def _show_text(self, text: str) -> None:
        from rich.markdown import Markdown

        whole = Markdown(safe(text))
        if self._live is None:
            self._console.print(whole)
        else:
            self._live.update(whole)
        self.close()

    def _show_notice(self, notice: str) -> None:
        self._console.print(f"[{printable(notice)}]", style="dim", markup=False)
