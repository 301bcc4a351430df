"""What a runner says in one attempt, and the text that it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magent2.bus.records import NewRecord
from magent2.worker.drive import Event, check_event
from magent2.worker.report import Report

if TYPE_CHECKING:
    from magent2.telemetry.runs import ObservedRun


class Script:
    """Takes events in order and hands them on as records.

    An output is kept back until the next event, or the end: the last one rides in the append that settles the run.
    """

    def __init__(self, report: Report, observed: ObservedRun | None = None) -> None:
        self._report = report
        self._observed = observed
        self._pieces: list[str] = []
        self._kept: NewRecord | None = None
        self._output: Mapping[str, Any] | None = None

    def take(self, event: Event) -> list[NewRecord]:
        """The records that are due after this event."""
        record = self._report.event(event if isinstance(event, dict) else check_event(event))
        kept, self._kept = self._kept, None
        due = [record] if kept is None else [kept, record]
        kind = record.payload.get("event")
        if kind == "token":
            if not self._pieces and self._observed is not None:
                self._observed.spoke()
            self._pieces.append(str(record.payload.get("text", "")))
        elif kind == "output":
            self._kept, self._output = due.pop(), record.payload
        return due

    def close(self) -> list[NewRecord]:
        """What is left to write. A runner that gave no output has one, of its tokens."""
        if self._output is None:
            self._kept = self._report.output("".join(self._pieces))
            self._output = self._kept.payload
        return [] if self._kept is None else [self._kept]

    @property
    def text(self) -> str:
        return "" if self._output is None else str(self._output.get("text", ""))

    @property
    def usage(self) -> Mapping[str, Any] | None:
        usage = None if self._output is None else self._output.get("usage")
        return usage if isinstance(usage, Mapping) else None
