"""Working on a bus that has only v1's `publish` and `read`: in one process, nothing kept across a restart."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from magent2.bus.interface import Bus, BusMessage
from magent2.bus.records import lane_of
from magent2.models.address import chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.stream import event_payload
from magent2.worker.runner_adapter import Runner, check_event

log = logging.getLogger(__name__)

BACKLOG_MAX = 10_000  # mail from before the first look that is still answered


class V1Mailbox:
    """The mail of one agent, read by a cursor that lives in this object.

    A message whose runner raises is counted and passed: what it had yielded stays on the stream, the error is logged,
    and the mail after it is answered. When the bus fails, the error is raised, and the message comes again next time.
    """

    def __init__(self, agent: str, bus: Bus, runner: Runner) -> None:
        self._topic = chat_topic(agent)
        self._bus = bus
        self._runner = runner
        self._last_id: str | None = None

    def process(self, limit: int) -> int:
        """Run up to `limit` messages; how many."""
        done = 0
        while done < limit:
            records = self._read(limit - done)
            for record in records:
                envelope = self._envelope(record)
                if envelope is not None:
                    self._run(envelope)
                    done += 1
                self._last_id = record.id
                if done == limit:
                    break
            if not records:
                break
        return done

    def _read(self, limit: int) -> list[BusMessage]:
        """The next records. Without a cursor a bus gives its last ones, so the first look is a long one."""
        if self._last_id is not None:
            return list(self._bus.read(self._topic, self._last_id, limit))
        records = list(self._bus.read(self._topic, None, BACKLOG_MAX))
        if len(records) == BACKLOG_MAX:
            log.warning("mail before the last records is left out", extra={"topic": self._topic, "kept": BACKLOG_MAX})
        return records

    def _envelope(self, record: BusMessage) -> MessageEnvelope | None:
        """The message to answer, if the record is one."""
        if lane_of(self._topic, record.payload) is None:
            return None
        try:
            envelope = MessageEnvelope.model_validate(record.payload)
        except ValidationError as error:
            faults = error.error_count()
            log.warning("mail cannot be read and is passed over", extra={"id": record.id, "faults": faults})
            return None
        return envelope if envelope.type == "message" else None

    def _run(self, envelope: MessageEnvelope) -> None:
        topic = stream_topic(envelope.conversation_id)
        for payload in self._payloads(envelope):
            self._bus.publish(topic, BusMessage(topic, payload))

    def _payloads(self, envelope: MessageEnvelope) -> Iterator[dict[str, Any]]:
        """What the runner yields, until it ends or raises."""
        try:
            for event in self._runner.stream_run(envelope):
                yield event_payload(check_event(event))
        except Exception:
            log.exception("a run failed", extra={"envelope_id": envelope.id})
