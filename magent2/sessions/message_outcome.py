"""The outcome of one message, folded from the conversation's stream while it is read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from magent2.bus.records import Record
from magent2.models.json_types import JsonMapping, JsonObject

ENDS = ("finished", "failed", "stopped")
EVENTS_MAX = 5000  # records kept per message; further tokens are left out, because the final text contains them


class MessageOutcome:
    """Takes the records of a stream in order and keeps the message and everything of the run that answers it.

    The run of a retried message has several ends; the last one counts.
    """

    def __init__(self, envelope_id: str) -> None:
        self.envelope_id = envelope_id
        self.records: list[Record] = []
        self.run_id: str | None = None
        self.status: str | None = None  # of the run, once it has ended
        self.reason: str | None = None
        self.output: JsonMapping | None = None

    def take(self, record: Record) -> None:
        payload = record.payload
        kind = payload.get("event")
        if kind == "run" and payload.get("envelope_id") == self.envelope_id:
            self._note_run(payload)
        elif kind == "output" and self._is_of_run(payload):
            self.output = payload
        if self._belongs(kind, payload) and (kind != "token" or len(self.records) < EVENTS_MAX):
            self.records.append(record)

    def _note_run(self, payload: Mapping[str, object]) -> None:
        status = str(payload.get("status"))
        run_id, reason = payload.get("run_id"), payload.get("reason")
        self.run_id = run_id if isinstance(run_id, str) else None
        self.status = status if status in ENDS else None
        self.reason = reason if isinstance(reason, str) else None

    def _belongs(self, kind: object, payload: Mapping[str, object]) -> bool:
        return self._is_of_run(payload) or (kind == "user_message" and payload.get("message_id") == self.envelope_id)

    def _is_of_run(self, payload: Mapping[str, object]) -> bool:
        return self.run_id is not None and payload.get("run_id") == self.run_id

    @property
    def text(self) -> str:
        return "" if self.output is None else str(self.output.get("text", ""))

    @property
    def usage(self) -> JsonMapping | None:
        usage = None if self.output is None else self.output.get("usage")
        return usage if isinstance(usage, Mapping) else None

    @property
    def message_id(self) -> str | None:
        """The id of the answer, not of the question."""
        found = None if self.output is None else self.output.get("message_id")
        return found if isinstance(found, str) else None

    def tool_calls(self) -> list[JsonObject]:
        """Each tool call once, in the order of their starts, with its result."""
        calls: dict[str, JsonObject] = {}
        for record in self.records:
            payload = record.payload
            if payload.get("event") == "tool_step":
                name = f"{payload.get('turn')}/{payload.get('tool_call_id') or record.seq}"
                calls.setdefault(name, _empty_call(payload)).update(_step_fields(payload))
        return list(calls.values())


def _empty_call(payload: Mapping[str, object]) -> JsonObject:
    return {
        "tool_call_id": payload.get("tool_call_id"),
        "name": payload.get("name"),
        "agent_id": payload.get("agent"),
        "args": {},
        "status": "start",
        "result": None,
        "error": None,
        "duration_ms": None,
    }


def _step_fields(payload: Mapping[str, object]) -> JsonObject:
    """The fields that this step adds to its call."""
    names = {
        "args": "args",
        "status": "status",
        "result_summary": "result",
        "error": "error",
        "duration_ms": "duration_ms",
    }
    return {own: payload[name] for name, own in names.items() if payload.get(name)}
