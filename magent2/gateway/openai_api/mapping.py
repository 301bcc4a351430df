"""From the records of a session's stream to the events and objects of the Responses API. Pure.

`ResponseMapping` takes the records in order. Each event has a sequence number that follows from its record alone: the
seq of the record, counted from the message, times `EVENTS_PER_RECORD`, plus the place of the event within its record.
So every gateway gives an event the same number at any time. Numbers grow, and have gaps.

Retention drops the tokens of a text that is complete. Then `response.output_text.done` has the whole text, under the
same number as before. A run that is restarted begins its unfinished text again: the item of the old text is closed as
`incomplete` and is not in the output of the response, and a new item is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from magent2.bus.records import Record
from magent2.gateway.openai_api.ids import CALL_PREFIX, MESSAGE_PREFIX, TOOL_PREFIX, ResponseId
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.sessions.history import message_id_of

EVENTS_PER_RECORD = 64  # places for events of one record
TOOL_CALL_ITEM = "magent2:tool_call"

# The places of events within a record
ADDED, PART_ADDED, DELTA, TEXT_DONE, PART_DONE, ITEM_DONE = range(6)
ARGUMENTS_DELTA, ARGUMENTS_DONE = PART_ADDED, DELTA
CREATED, QUEUED = 0, 1
STATUS = EVENTS_PER_RECORD - 1  # after all events about items

ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
STATUS_OF_END: Mapping[str, ResponseStatus] = {"finished": "completed", "failed": "failed", "stopped": "cancelled"}
# There is no event for a cancelled response. The response in the event says that it was.
LAST_EVENTS = {
    "completed": "response.completed",
    "failed": "response.failed",
    "cancelled": "response.incomplete",
    "incomplete": "response.incomplete",
}
# The reason of a failed run begins with the type of the error
ERROR_CODES = {"OutputMismatch": "output_mismatch", "ModelRefused": "model_refused"}


class ProtocolEvent(NamedTuple):
    """An event of the Responses API."""

    number: int
    type: str
    fields: JsonObject

    def payload(self) -> JsonObject:
        return {"type": self.type, "sequence_number": self.number, **self.fields}


class ResponseFacts(TypedDict):
    """What a response repeats of its request: the fields of the response object that do not change."""

    model: str
    created_at: int
    previous_response_id: str | None
    background: bool
    store: bool
    fields: JsonObject  # all others
    with_tool_calls: bool  # the steps of the agents' own tools are items too


class _Item:
    """An output item that is not finished."""

    __slots__ = ("id", "index", "value")

    def __init__(self, item_id: str, index: int, value: JsonObject) -> None:
        self.id = item_id
        self.index = index
        self.value = value


class ResponseMapping:
    """One response, folded from the records of the stream of its session."""

    def __init__(self, response_id: ResponseId, facts: ResponseFacts) -> None:
        self.id = response_id
        self.facts = facts
        self.status: ResponseStatus = "queued" if facts["background"] else "in_progress"
        self.found = False  # the message of the response is in the stream
        self.run_id: str | None = None
        self.output: list[JsonObject] = []  # completed items
        self.error: JsonObject | None = None
        self.usage: Mapping[str, int] | None = None
        self.incomplete_reason: str | None = None  # of the last output: `max_output_tokens`
        self.ended_ms: int | None = None
        self.calls: list[JsonObject] = []  # `function_call` items: calls of the client's tools
        self._client_calls: set[tuple[object, object]] = set()  # turn and id of all of them
        self._sealed = False  # it has ended with calls of the client's tools; what follows is another response
        self._begun = response_id.turn is None  # the records are those of this response, not of an earlier one
        self._usage_before: Mapping[str, int] = {}
        self._items = 0  # items that were opened
        self._attempts = 0  # attempts after which the run was restarted
        self._paused = False
        self._text: _Item | None = None  # the text that is being written
        self._tools: dict[str, _Item] = {}  # tool steps in progress, by turn and call
        self._last_seq = response_id.seq  # of the last record of the run

    @property
    def is_over(self) -> bool:
        return self.status in LAST_EVENTS

    def take(self, record: Record) -> list[ProtocolEvent]:
        """The events of a record. Records of other messages and runs have none."""
        payload = record.payload
        kind = payload.get("event")
        if kind == "user_message":
            return list(self._message(record)) if payload.get("message_id") == self.id.envelope else []
        if self._sealed:
            return []
        if kind in ("run", "client_call") and payload.get("envelope_id") == self.id.envelope:
            run_id = payload.get("run_id")
            self.run_id = run_id if isinstance(run_id, str) else None
        elif kind == "message_received" and self._joins(payload):
            self.run_id, self.status = str(payload.get("run_id")), "in_progress"
        elif self.run_id is None or payload.get("run_id") != self.run_id:
            return []
        handler = _HANDLERS.get(str(kind))
        events = [] if handler is None else list(handler(self, record))
        self._last_seq = record.seq
        return events

    def _joins(self, payload: JsonMapping) -> bool:
        """Whether a run in progress has received the message: it answers it too (`when_busy`: `steer`)."""
        return any(
            message.get("id") == self.id.envelope and message.get("outcome") == "seen"
            for message in payload.get("messages", ())
        )

    # --- the object

    def response(self) -> JsonObject:
        """The response object as it is now."""
        facts = self.facts
        return {
            "id": str(self.id),
            "object": "response",
            "created_at": facts["created_at"],
            "completed_at": self.ended_ms // 1000 if self.ended_ms is not None and self.status == "completed" else None,
            "status": self.status,
            "incomplete_details": {"reason": self.incomplete_reason} if self.status == "incomplete" else None,
            "model": facts["model"],
            "previous_response_id": facts["previous_response_id"],
            "conversation": {"id": self.id.session},
            "output": list(self.output),
            "error": self.error,
            "usage": None if self.usage is None else usage_object(self.usage, self._usage_before),
            "store": facts["store"],
            "background": facts["background"],
            **facts["fields"],
        }

    # --- records

    def _message(self, record: Record) -> Iterator[ProtocolEvent]:
        if record.seq != self.id.seq:
            return
        self.found = True
        if self._begun:
            yield self._event(record, CREATED, "response.created", {"response": self.response()})
            if self.facts["background"]:
                yield self._event(record, QUEUED, "response.queued", {"response": self.response()})

    def _run(self, record: Record) -> Iterator[ProtocolEvent]:
        status = str(record.payload.get("status"))
        if status in STATUS_OF_END:
            yield from self._end(record, STATUS_OF_END[status])
            return
        if not self._begun:
            return
        if status == "restarted" and not self._paused:
            yield from self._close_text(record)
            self._attempts += 1
        self._paused = False
        self.error = self.ended_ms = None
        self.status = "in_progress"
        yield self._event(record, STATUS, "response.in_progress", {"response": self.response()})

    def _end(self, record: Record, status: ResponseStatus) -> Iterator[ProtocolEvent]:
        if not self._begun:
            return
        yield from self._close_text(record)
        for name in list(self._tools):
            yield from self._close_tool(record, name, {"status": "incomplete"})
        reason = record.payload.get("reason")
        if status == "failed":
            message = str(reason or "the run failed")
            self.error = {"code": ERROR_CODES.get(message.partition(":")[0], "server_error"), "message": message}
        elif status == "completed" and self.incomplete_reason is not None:
            status = "incomplete"
        yield self._last(record, status)

    def _last(self, record: Record, status: ResponseStatus) -> ProtocolEvent:
        self.status = status
        self.ended_ms = record.at_ms
        return self._event(record, STATUS, LAST_EVENTS[status], {"response": self.response()})

    def _token(self, record: Record) -> Iterator[ProtocolEvent]:
        if not self._begun or record.payload.get("run_kind"):
            return
        item = self._text
        if item is None:
            item = self._open_text(record)
            yield from self._text_opened(item, self._number(record, ADDED))
        fields: JsonObject = {
            "item_id": item.id,
            "output_index": item.index,
            "content_index": 0,
            "delta": record.payload.get("text", ""),
            "logprobs": [],
        }
        yield self._event(record, DELTA, "response.output_text.delta", fields)

    def _whole_text(self, record: Record) -> Iterator[ProtocolEvent]:
        if not self._begun or record.payload.get("run_kind"):
            return
        self._usage_of(record.payload)
        text = str(record.payload.get("text") or "")
        item = self._text
        if item is None:
            # The tokens may be gone. The first of them came after the record before, so this number is not greater than
            # the one that the event had: a client that has seen it does not get it again.
            first = (self._last_seq + 1 - self.id.seq) * EVENTS_PER_RECORD
            item = self._open_text(record)
            yield from self._text_opened(item, first)
        place: JsonObject = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        part = text_part(text)
        done = {"text": text, "logprobs": [], **place}
        yield self._event(record, TEXT_DONE, "response.output_text.done", done)
        yield self._event(record, PART_DONE, "response.content_part.done", {"part": part, **place})
        reason = record.payload.get("incomplete_reason")
        self.incomplete_reason = None if reason is None else str(reason)
        item.value = {**item.value, "status": "completed" if reason is None else "incomplete", "content": [part]}
        self.output.append(item.value)
        self._text = None
        yield self._event(
            record, ITEM_DONE, "response.output_item.done", {"output_index": item.index, "item": item.value}
        )

    def _open_text(self, record: Record) -> _Item:
        # The name must be the same when the tokens are gone, so it depends neither on them nor on their records. Only
        # texts of the model have tokens; a message that a tool sent is named by its record.
        turn = record.payload.get("turn") or 0
        of_model = record.payload.get("message_id") == message_id_of(str(self.run_id), int(turn))
        name = f"{turn}-{self._attempts}" if of_model else f"m{record.seq}"
        item = self._text = self._open(
            self.id.item(MESSAGE_PREFIX, name),
            {"type": "message", "role": "assistant", "status": "in_progress", "content": []},
        )
        return item

    @staticmethod
    def _text_opened(item: _Item, number: int) -> Iterator[ProtocolEvent]:
        fields: JsonObject = {"output_index": item.index, "item": item.value}
        yield ProtocolEvent(number, "response.output_item.added", fields)
        place = {"item_id": item.id, "output_index": item.index, "content_index": 0}
        part = {"part": text_part(""), **place}
        yield ProtocolEvent(number + PART_ADDED, "response.content_part.added", part)

    def _close_text(self, record: Record) -> Iterator[ProtocolEvent]:
        """Close a text that will not be finished. Its tokens may be gone when it is read again, so it has none."""
        item, self._text = self._text, None
        if item is not None:
            value = {**item.value, "status": "incomplete", "content": []}
            fields = {"output_index": item.index, "item": value}
            yield self._event(record, ITEM_DONE, "response.output_item.done", fields)

    def _tool_step(self, record: Record) -> Iterator[ProtocolEvent]:
        payload = record.payload
        if not self._begun or not self.facts["with_tool_calls"] or payload.get("run_kind"):
            return
        if (payload.get("turn"), payload.get("tool_call_id")) in self._client_calls:
            return
        name = f"{payload.get('turn') or 0}-{payload.get('tool_call_id') or record.seq}"
        if payload.get("status") == "start":
            if name in self._tools:
                return  # another attempt runs the same call
            value: JsonObject = {
                "type": TOOL_CALL_ITEM,
                "status": "in_progress",
                "call_id": payload.get("tool_call_id"),
                "name": payload.get("name"),
                "arguments": payload.get("args") or {},
                "agent": payload.get("agent"),
                "output": None,
                "error": None,
            }
            item = self._tools[name] = self._open(self.id.item(TOOL_PREFIX, _printable(name)), value)
            fields = {"output_index": item.index, "item": item.value}
            yield self._event(record, ADDED, "response.output_item.added", fields)
        elif name in self._tools:
            error = payload.get("error")
            done = {
                "status": "incomplete" if error else "completed",
                "output": payload.get("result_summary"),
                "error": error,
            }
            yield from self._close_tool(record, name, done)

    def _close_tool(self, record: Record, name: str, done: JsonMapping) -> Iterator[ProtocolEvent]:
        item = self._tools.pop(name)
        item.value = {**item.value, **done}
        self.output.append(item.value)
        place = ITEM_DONE + 1 + len(self._tools) % (STATUS - ITEM_DONE - 1)
        yield self._event(record, place, "response.output_item.done", {"output_index": item.index, "item": item.value})

    def _client_call(self, record: Record) -> Iterator[ProtocolEvent]:
        """A call of the client's tool is an item of this response. After the last one the response is complete."""
        payload = record.payload
        turn, call_id = payload.get("turn") or 0, payload.get("tool_call_id")
        self._client_calls.add((payload.get("turn"), call_id))
        self._paused = True  # the run is restarted after the outputs
        if payload.get("status") != "requested":
            yield from self._answered(record, turn)
            return
        self._usage_of(payload)
        if not self._begun:
            self._usage_before = self.usage or {}
            self.found = self.found or (turn == self.id.turn and record.seq == self.id.seq)
            return
        name, arguments = payload.get("name"), payload.get("arguments") or ""
        value = {"type": "function_call", "status": "in_progress", "call_id": call_id, "name": name, "arguments": ""}
        item = self._open(self.id.item(CALL_PREFIX, f"{turn}-{payload.get('index')}"), value)
        place = {"item_id": item.id, "output_index": item.index}
        shown = {"output_index": item.index, "item": item.value}
        yield self._event(record, ADDED, "response.output_item.added", shown)
        delta, done = {"delta": arguments, **place}, {"arguments": arguments, "name": name, **place}
        yield self._event(record, ARGUMENTS_DELTA, "response.function_call_arguments.delta", delta)
        yield self._event(record, ARGUMENTS_DONE, "response.function_call_arguments.done", done)
        item.value = {**item.value, "status": "completed", "arguments": arguments}
        self.output.append(item.value)
        self.calls.append(item.value)
        shown = {"output_index": item.index, "item": item.value}
        yield self._event(record, ITEM_DONE, "response.output_item.done", shown)
        if (payload.get("index") or 0) + 1 >= (payload.get("count") or 1):
            self._sealed = True
            yield self._last(record, "completed")

    def _answered(self, record: Record, turn: object) -> Iterator[ProtocolEvent]:
        """The first output of the calls begins the next response."""
        if not self._begun and turn == self.id.turn:
            self._begun = True
            self.usage = None
            self.status = "in_progress"
            yield self._event(record, CREATED, "response.created", {"response": self.response()})

    def _usage_of(self, payload: JsonMapping) -> None:
        usage = payload.get("usage")
        if isinstance(usage, Mapping):
            self.usage = usage

    def _open(self, item_id: str, value: JsonObject) -> _Item:
        item = _Item(item_id, self._items, {"id": item_id, **value})
        self._items += 1
        return item

    def _approval(self, record: Record) -> Iterator[ProtocolEvent]:
        self._paused = True  # the run is restarted after the decision
        yield from ()

    def _number(self, record: Record, place: int) -> int:
        return (record.seq - self.id.seq) * EVENTS_PER_RECORD + place

    def _event(self, record: Record, place: int, kind: str, fields: JsonObject) -> ProtocolEvent:
        return ProtocolEvent(self._number(record, place), kind, fields)


_HANDLERS = {
    "run": ResponseMapping._run,
    "token": ResponseMapping._token,
    "message": ResponseMapping._whole_text,
    "output": ResponseMapping._whole_text,
    "tool_step": ResponseMapping._tool_step,
    "approval": ResponseMapping._approval,
    "client_call": ResponseMapping._client_call,
}


def text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage_object(usage: Mapping[str, int], before: Mapping[str, int]) -> JsonObject:
    """The usage of a run as the Responses API shows it, without what earlier responses of the run have shown."""

    def count(name: str) -> int:
        return max(0, int(usage.get(name) or 0) - int(before.get(name) or 0))

    asked, said = count("input_tokens"), count("output_tokens")
    return {
        "input_tokens": asked,
        "output_tokens": said,
        "total_tokens": count("total_tokens") or asked + said,
        "input_tokens_details": {"cached_tokens": count("cached_tokens")},
        "output_tokens_details": {"reasoning_tokens": count("reasoning_tokens")},
    }


def _printable(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in name)
