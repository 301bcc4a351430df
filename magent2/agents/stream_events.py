"""From the SDK's stream events of a run in this process to ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from magent2.events import BaseStreamEvent, HandoffEvent, MessageEvent, OutputEvent
from magent2.runner.event_mapping import EventMapper, MappedHandoff, as_text, usage_of


class StreamEventMapper:
    """The events of one stream, over as many runs of the SDK as it takes."""

    def __init__(self, conversation_id: str, agent_name: str) -> None:
        self.agent_name = agent_name  # who speaks now
        self._conversation_id = conversation_id
        self._mapper = EventMapper(conversation_id)
        self._usage: dict[str, int] = {}
        self._said = ""  # text of the turn under way
        self._called = False  # whether that turn goes on with tools

    def note_failure(self, call_id: str, reason: str) -> None:
        self._mapper.note_failure(call_id, reason)

    def hear(self, event: Any) -> Iterator[BaseStreamEvent]:
        if event.type == "agent_updated_stream_event":
            self.agent_name = event.new_agent.name
        elif event.type == "raw_response_event" and self._goes_on(event.data):
            yield self._message()
        mapped = self._mapper.map(event)
        if isinstance(mapped, MappedHandoff):
            yield HandoffEvent(conversation_id=self._conversation_id, source=mapped.source, target=mapped.target)
        elif mapped is not None:
            yield mapped

    def superseded(self, final: object, usage: object) -> MessageEvent:
        """An answer that would have been the last, if no message had come while it was given."""
        self._add_usage(usage)
        self._said = as_text(final)
        return self._message()

    def output(self, final: object, usage: object) -> OutputEvent:
        self._add_usage(usage)
        return OutputEvent(conversation_id=self._conversation_id, text=as_text(final), usage=dict(self._usage) or None)

    def _goes_on(self, data: Any) -> bool:
        """Whether text has been said that is not the turn's last word."""
        if data.type == "response.output_item.done":
            if data.item.type == "message":
                self._said = "".join(getattr(part, "text", "") for part in data.item.content)
            elif data.item.type.endswith("_call"):
                self._called = True
        over = data.type == "response.completed"
        told = self._called and bool(self._said)
        if over:
            self._called, self._said = False, self._said if told else ""
        return told

    def _message(self) -> MessageEvent:
        text, self._said = self._said, ""
        return MessageEvent(conversation_id=self._conversation_id, text=text)

    def _add_usage(self, usage: object) -> None:
        for name, count in (usage_of(usage) or {}).items():
            self._usage[name] = self._usage.get(name, 0) + count
