"""Shows the events of a conversation to a person: one line per event, or a run as it happens."""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from magent2.cli.output import print_data, print_note, shortened
from magent2.terminal import clean_line, clean_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.live import Live
    from rich.segment import Segment

    from magent2.client import ApprovalInfo, ConversationEvent

ARGUMENTS_MAX_CHARS = 100
APPROVAL_ARGUMENTS_MAX_CHARS = 2000  # a person decides by what they see, so more is shown than of other calls
RESULT_MAX_CHARS = 200
REFRESH_PER_S = 12

EventData = Mapping[str, object]


# --- one event as text


def event_line(event: ConversationEvent) -> str:
    """An event on one line: sequence number, time, text, as in `    7 12:04:01 general: hello`."""
    clock = str(event.data.get("created_at") or "")[11:19].ljust(8)
    return f"{event.seq:>5} {clock} {clean_line(event_text(event))}"


def event_text(event: ConversationEvent) -> str:
    describe = _DESCRIPTIONS.get(event.kind)
    if describe is None:  # of a later release, or of another program
        return f"{event.kind} {shortened(_fields(event.data), RESULT_MAX_CHARS)}".rstrip()
    return describe(event.data)


def approval_text(approval: ApprovalInfo) -> str:
    """A tool call that needs approval and the commands that decide on it, or the decision."""
    status = "requested" if approval.status == "pending" else approval.status
    fields = {**approval.model_dump(), "status": status, "agent": approval.agent_id}
    return _approval(
        {**fields, "conversation_id": approval.session_id, "name": approval.tool, "tool_call_id": approval.call_id}
    )


def call_text(name: object, arguments: object, limit: int = ARGUMENTS_MAX_CHARS) -> str:
    """A tool call as code, as in `refund(order="7")`."""
    given = arguments if isinstance(arguments, dict) else {}
    texts = (f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in given.items())
    return f"{name}({shortened(', '.join(texts), limit)})"


def tool_step_text(data: EventData) -> str:
    """The call of a tool, its result, or its error."""
    status, name = data.get("status"), data.get("name")
    if status == "start":
        return f"calls {call_text(name, data.get('args'))}"
    if status == "error":
        return f"{name} failed: {shortened(_str(data, 'error'), RESULT_MAX_CHARS)}"
    return f"{name} → {shortened(_str(data, 'result_summary'), RESULT_MAX_CHARS)}"


def _str(data: EventData, field: str) -> str:
    return str(data.get(field) or "")


def _fields(data: EventData) -> str:
    """The fields of an unknown event, without those that every event has."""
    return ", ".join(f"{name}: {value}" for name, value in data.items() if name not in _COMMON_FIELDS)


def _agent(data: EventData) -> str:
    return _str(data, "agent") or "agent"


def _spoken(data: EventData) -> str:
    return f"{_agent(data)}: {_str(data, 'text')}"


def _compacted(data: EventData) -> str:
    sizes = f"about {data.get('tokens_before')} tokens, now {data.get('tokens_after')}"
    if data.get("summary") is None:
        return f"the conversation was too long for the model ({sizes}); its beginning is left out"
    return f"the beginning of the conversation was summarised for the model ({sizes})"


def _run(data: EventData) -> str:
    reason = f" ({data['reason']})" if data.get("reason") else ""
    return f"{_agent(data)} run {data.get('status')}{reason}"


def _receipt(data: EventData) -> str:
    messages = data.get("messages")
    received = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    return f"{_agent(data)}: {'; '.join(map(_received, received)) or 'received no message'}"


def _received(message: EventData) -> str:
    """The outcome of one steer or stop."""
    command, outcome = message.get("command"), str(message.get("outcome"))
    what = f"the {str(command or 'message').replace('_', ' ')} of {message.get('source')}"
    text = f" ({shortened(_str(message, 'text'))})" if message.get("text") else ""
    return f"{what}{text} {_OUTCOMES.get(outcome, outcome)}"


def _approval(data: EventData) -> str:
    call = call_text(data.get("name"), data.get("args"), APPROVAL_ARGUMENTS_MAX_CHARS)
    if data.get("status") == "requested":
        place = shlex.join((_str(data, "conversation_id"), _str(data, "tool_call_id")))
        return f"{_agent(data)} needs approval for {call}: magent2 approve {place} or magent2 reject {place}"
    by = f" by {data['decided_by']}" if data.get("decided_by") else ""
    reason = f": {data['reason']}" if data.get("reason") else ""
    return f"{data.get('status')}{by}: {call} ({data.get('tool_call_id')}){reason}"


def _block(data: EventData) -> str:
    held = f", {data.get('sent')} of {data['held']} messages sent" if data.get("held") else ""
    return f"{_agent(data)} ran a Python block: {data.get('status')}{held}"


def _budget(data: EventData) -> str:
    found = data.get("budgets")
    kinds = [str(item.get("budget")) for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    names = ", ".join(kinds) or "unknown"
    if data.get("status") == "warning":
        return f"{_agent(data)} has used most of its budget ({names}): magent2 budgets ls"
    place = shlex.quote(_str(data, "conversation_id"))
    again = f"goes on at {data['resumes_at']}; " if data.get("resumes_at") else ""
    return f"{_agent(data)} waits, its budget is used up ({names}); {again}magent2 budgets ls, or magent2 stop {place}"


def _subagent(data: EventData) -> str:
    task = shortened(_str(data, "task"), RESULT_MAX_CHARS)
    place = shlex.quote(_str(data, "subagent_id"))
    return f"{_agent(data)} started the subagent {data.get('name')} (magent2 tail {place}): {task}"


def _handoff(data: EventData) -> str:
    reason = f": {data['reason']}" if data.get("reason") else ""
    return f"{_str(data, 'source') or 'no agent'} hands over to {data.get('target')}{reason}"


def _error(data: EventData) -> str:
    retry_s = data.get("retry_in_s")
    retry = f" (retry in {retry_s:g} s)" if isinstance(retry_s, int | float) else ""
    return f"error {data.get('code')}: {data.get('message')}{retry}"


_COMMON_FIELDS = ("event", "id", "seq", "conversation_id", "created_at")

_OUTCOMES: Mapping[str, str] = {
    "seen": "was read",
    "input": "starts a run of its own",
    "stopped": "stopped the run",
    "too_late": "came too late: the run had ended",
    "not_meant": "was for another run",
    "nothing_to_stop": "found nothing to stop",
}

_DESCRIPTIONS: Mapping[str, Callable[[EventData], str]] = {
    "user_message": lambda data: f"{data.get('sender')} → {data.get('recipient')}: {_str(data, 'text')}",
    "token": _spoken,
    "output": _spoken,
    "message": _spoken,
    "tool_step": lambda data: f"{_agent(data)} {tool_step_text(data)}",
    "message_received": _receipt,
    "approval": _approval,
    "block": _block,
    "budget": _budget,
    "subagent": _subagent,
    "superseded": lambda data: f"the answer of {_agent(data)} to {data.get('envelope_id')} was replaced",
    "compacted": _compacted,
    "run": _run,
    "handoff": _handoff,
    "mcp_server": lambda data: f"MCP server {data.get('server')} {data.get('status')}: {_str(data, 'reason')}",
    "session": lambda data: f"conversation {data.get('status')}",
    "error": _error,
    "gap": lambda data: f"gap: events were deleted or lost; the stream continues after {data.get('floor')}",
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
        print_data(token, newline=False)

    def _show_text(self, text: str) -> None:
        already_printed = self._draft is not None and self._text == text
        self.close()
        if not already_printed:
            print_data(text)

    def _show_notice(self, notice: str) -> None:
        print_note(f"  [{notice}]")


class CleanMarkdown:
    """Markdown without control characters. Entities such as `&#8238;` become characters when it is rendered.

    Links are shown with their URLs: a text that hides where a link leads could be of any guest.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.markdown import Markdown
        from rich.segment import Segment

        for part in console.render(Markdown(clean_text(self._text), hyperlinks=False), options):
            yield part if part.control else Segment(clean_text(part.text), part.style)


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

        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=REFRESH_PER_S, vertical_overflow="visible")
            self._live.start()
        self._live.update(CleanMarkdown(self._text))

    def _show_text(self, text: str) -> None:
        whole = CleanMarkdown(text)
        if self._live is None:
            self._console.print(whole)
        else:
            self._live.update(whole)
        self.close()

    def _show_notice(self, notice: str) -> None:
        self._console.print(f"[{clean_line(notice)}]", style="dim", markup=False)
