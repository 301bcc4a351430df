"""Maps the SDK's stream events to the events of the contract. Pure: no I/O.

Events may be the SDK's objects or dicts of the same shape. Unknown events are skipped, because a release of the SDK may
add kinds at any time.

| SDK event | event of the contract |
|---|---|
| `raw_response_event` with a text delta | `TokenEvent`, index from 0 per run |
| `run_item_stream_event` with a tool call | `ToolStepEvent`, status `start` |
| `run_item_stream_event` with a tool's result | `ToolStepEvent`, status `success` or `error`, name and id of the call |
| `run_item_stream_event` with a completed handoff | `MappedHandoff` |
| an assistant message, as such an item or as an event | none; its text and usage are those of the output |
| end of the stream | `OutputEvent` from `EventMapper.output` |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from magent2.models.envelope import OutputEvent, TokenEvent, ToolStepEvent
from magent2.models.json_types import JsonObject, encodable

ARGS_MAX = 32  # arguments of one call in an event
ARG_MAX_CHARS = 500  # of one argument
RESULT_MAX_CHARS = 1000
CUT_MARK = "…"
INT_MAX_DIGITS = 18  # always fits 64 bits

# The SDK's default result for the model when a tool raised an error.
SDK_TOOL_FAILED = "An error occurred while running the tool. Please try again."

TEXT_DELTA: Final = "response.output_text.delta"
USAGE_FIELDS = ("requests", "input_tokens", "output_tokens", "total_tokens")
# Counts that are part of `input_tokens` and `output_tokens`, and where the SDK has them. Most models report zero.
USAGE_DETAILS = {
    "cached_tokens": ("input_tokens_details", "cached_tokens"),
    "reasoning_tokens": ("output_tokens_details", "reasoning_tokens"),
}
USAGE_COUNTS_MAX = 16  # counts of a usage that is given as a dict
MESSAGE_KINDS = ("message_output_item", "message_output_created", "message", "assistant_message")


@dataclass(frozen=True, slots=True)
class MappedHandoff:
    """One agent handed the conversation off to another. Not an event of contract v1."""

    source: str
    target: str


Mapped: TypeAlias = TokenEvent | ToolStepEvent | MappedHandoff


class EventMapper:
    """Maps the events of one run. Counts its tokens and remembers its calls."""

    def __init__(self, conversation_id: str) -> None:
        self._conversation_id = conversation_id
        self._tokens: list[str] = []
        self._message: str | None = None  # text of the last whole message
        self._usage: dict[str, int] | None = None  # of the last message that reports one
        self._calls: dict[str, str] = {}  # call id → tool
        self._failures: dict[str, str] = {}  # call id → reason

    def map(self, event: object) -> Mapped | None:
        kind = _get(event, "type")
        if kind == "raw_response_event":
            return self._token(_get(event, "data"))
        if kind == "run_item_stream_event":
            return self._item(_get(event, "name"), _first(event, "item", "data"))
        if _is_message(kind, event):
            self._note_message(event)
        return None

    def note_failure(self, call_id: str, reason: str) -> None:
        """Mark a call as failed, before its result is mapped: the result itself does not show it."""
        self._failures[call_id] = reason

    def output(self, final: object = None, usage: object = None) -> OutputEvent:
        """The last event of the run. Without a final output, its text is the last message, else all tokens.

        Without a usage of the run, it has the usage that the last message reported.
        """
        if final is None:
            final = "".join(self._tokens) if self._message is None else self._message
        counts = usage_of(usage) or self._usage
        return OutputEvent(conversation_id=self._conversation_id, text=as_text(final), usage=counts)

    def _token(self, data: object) -> TokenEvent | None:
        delta = _get(data, "delta")
        if not isinstance(delta, str) or not delta or _get(data, "type") not in (TEXT_DELTA, None):
            return None
        self._tokens.append(encodable(delta))
        return TokenEvent(conversation_id=self._conversation_id, text=self._tokens[-1], index=len(self._tokens) - 1)

    def _item(self, name: object, item: object) -> ToolStepEvent | MappedHandoff | None:
        kind = _get(item, "type") or name
        if kind in ("handoff_output_item", "handoff_occured", "handoff_occurred"):
            source, target = (_get(_get(item, side), "name") for side in ("source_agent", "target_agent"))
            return MappedHandoff(source, target) if isinstance(source, str) and isinstance(target, str) else None
        if kind in ("handoff_call_item", "handoff_requested"):
            return None  # requested, not yet completed
        if _is_message(kind, item):
            self._note_message(item)
            return None
        if kind in ("tool_call_output_item", "tool_output") or _has(item, "result", "result_summary", "output"):
            return self._result(item)
        if kind in ("tool_call_item", "tool_called") or _has(item, "args", "arguments"):
            return self._call(item)
        return None

    def _note_message(self, item: object) -> None:
        self._message = _message_text(item)
        self._usage = usage_of(_get(_raw(item), "usage")) or self._usage

    def _call(self, item: object) -> ToolStepEvent:
        raw = _raw(item)
        name = _tool_name(item, raw) or "unknown"
        call_id = _call_id(item, raw)
        if call_id is not None:
            self._calls[call_id] = name
        return ToolStepEvent(
            conversation_id=self._conversation_id,
            name=name,
            args=short_args(_first(raw, "arguments", "args", "action", "input")),
            status="start",
            tool_call_id=call_id,
        )

    def _result(self, item: object) -> ToolStepEvent:
        raw = _raw(item)
        call_id = _call_id(item, raw)
        output = _first(item, "output", "result", "result_summary")
        text = as_text(plain_text(_get(raw, "output") if output is None else output))
        reported = _get(item, "error")
        error = reported if isinstance(reported, str) and reported else failure_in(output, text)
        error = error or self._failures.get(call_id or "")
        name = self._calls.get(call_id or "") or _tool_name(item, raw) or "unknown"
        return ToolStepEvent(
            conversation_id=self._conversation_id,
            name=name,
            result_summary=cut(text, RESULT_MAX_CHARS),
            status="error" if error is not None else "success",
            error=None if error is None else cut(error, RESULT_MAX_CHARS),
            tool_call_id=call_id,
        )


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(CUT_MARK)] + CUT_MARK


def short_args(value: object) -> JsonObject:
    """The arguments of a call, as a JSON object of bounded size."""
    if isinstance(value, str):
        value = _parsed(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        value = _parsed(as_text(value))
    if not isinstance(value, Mapping):
        return {"arguments": _short(value)}
    args = {cut(encodable(str(name)), ARG_MAX_CHARS): _short(item) for name, item in list(value.items())[:ARGS_MAX]}
    if len(value) > ARGS_MAX:
        args[CUT_MARK] = f"{len(value) - ARGS_MAX} more"
    return args


def plain_text(value: object) -> object:
    """The text of a result that consists of MCP text blocks. Any other result is returned unchanged."""
    blocks = value if isinstance(value, list) else [value]
    texts = [
        block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None for block in blocks
    ]
    return "\n".join(map(str, texts)) if blocks and all(isinstance(text, str) for text in texts) else value


def as_text(value: object) -> str:
    """The value as text: a string unchanged, anything else as JSON."""
    if isinstance(value, str):
        return encodable(value)
    if value is None:
        return ""
    try:
        return encodable(json.dumps(value, ensure_ascii=False, default=_plain))
    except (ValueError, RecursionError):  # a value that contains itself
        return encodable(str(value))


def usage_of(usage: object) -> dict[str, int] | None:
    """The counts of the SDK's `Usage`, or the whole numbers of a dict. `None` if all are zero or missing.

    Cached and reasoning tokens are among them if there are any.
    """
    names = list(usage)[:USAGE_COUNTS_MAX] if isinstance(usage, Mapping) else USAGE_FIELDS
    values = {str(name): _get(usage, name) for name in names}
    for name, (details, field) in USAGE_DETAILS.items():
        values.update({name: found} if (found := _get(_get(usage, details), field)) else {})
    counts = {name: value for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    return counts if any(counts.values()) else None


def _short(value: object) -> object:
    """The value itself if its JSON is short, else the beginning of its JSON."""
    if isinstance(value, str):
        return cut(encodable(value), ARG_MAX_CHARS)
    text = as_text(value)
    return _parsed(text) if len(text) <= ARG_MAX_CHARS else cut(text, ARG_MAX_CHARS)


def _parsed(text: str) -> object:
    """The value of a JSON text; text that is not JSON unchanged, because a model may write anything.

    NaN and integers of more than 64 bits become text: a log does not accept them.
    """

    def parse_int(digits: str) -> int | str:
        return int(digits) if len(digits) <= INT_MAX_DIGITS else digits

    try:
        parsed: object = json.loads(text, parse_constant=str, parse_int=parse_int) if text.strip() else None
    except (ValueError, RecursionError):
        return text
    return parsed


def _plain(value: object) -> object:
    """A value that JSON cannot encode, as one that it can: a pydantic model as its fields, others as text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


def failure_in(output: object, text: str) -> str | None:
    """The reason of a failure that the result of a call reports. `None` if it reports none."""
    if isinstance(output, Mapping) and output.get("ok") is False:
        return as_text(output.get("error") or output)
    return text if text == SDK_TOOL_FAILED else None


def _is_message(kind: object, item: object) -> bool:
    """Whether an event or item is a message of the assistant. A dict may have only a role and a content."""
    if kind in MESSAGE_KINDS:
        return _first(item, "role") in (None, "assistant")
    return kind is None and _get(item, "role") == "assistant"


def _message_text(item: object) -> str | None:
    """The text of a message item: the parts of its content, joined."""
    content = _first(_raw(item), "content", "text")
    if isinstance(content, str):
        return content
    parts = [_get(part, "text") for part in content] if isinstance(content, list) else []
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else None


def _raw(item: object) -> object:
    raw = _get(item, "raw_item")
    return item if raw is None else raw


def _tool_name(item: object, raw: object) -> str | None:
    """The name of the tool. A hosted tool has none and is named after its type: `web_search_call` → `web_search`."""
    for name in (_get(item, "tool_name"), _first(raw, "name", "tool_name")):
        if isinstance(name, str) and name:
            return name
    kind = _get(raw, "type")
    return kind.removesuffix("_output").removesuffix("_call") if isinstance(kind, str) and "call" in kind else None


def _call_id(item: object, raw: object) -> str | None:
    call_id = _first(raw, "call_id", "tool_call_id", "id") or _first(item, "call_id", "tool_call_id")
    return None if call_id is None else str(call_id)


def _get(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _first(value: object, *names: str) -> object:
    """The first of these attributes that is not `None`."""
    return next((found for name in names if (found := _get(value, name)) is not None), None)


def _has(value: object, *names: str) -> bool:
    return _first(value, *names) is not None
