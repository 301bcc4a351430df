"""The auditor of HTTP: compares what clients received with the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from magent2.bus.records import Record


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event as a client read it; `seq` is the cursor that came with it."""

    seq: int
    kind: str
    data: Mapping[str, Any]


def stream_findings(log: Sequence[Record], seen: Sequence[SeenEvent], since: int = 0) -> list[str]:
    """A follower saw every record after `since` once, in order, as the log has it, and nothing else."""
    expected = {record.seq: record for record in log if record.seq > since}
    counted = Counter(event.seq for event in seen)
    findings = [f"event {seq} is missing" for seq in expected if not counted[seq]]
    findings += [f"event {seq} came {count} times" for seq, count in counted.items() if count > 1]
    findings += [
        f"event {later.seq} came after {earlier.seq}" for earlier, later in pairwise(seen) if later.seq < earlier.seq
    ]
    for event in seen:
        findings += _event_findings(event, expected.get(event.seq))
    return findings


def _event_findings(event: SeenEvent, record: Record | None) -> list[str]:
    if record is None:
        return [f"event {event.seq} ({event.kind}) is not in the log"]
    findings = [] if event.kind == record.payload["event"] else [f"event {event.seq} was called {event.kind!r}"]
    if dict(event.data) != {**record.payload, "seq": record.seq}:
        findings.append(f"event {event.seq} differs from the log: {event.data}")
    return findings


def acceptance_findings(accepted: Sequence[tuple[str, int]], log: Sequence[Record]) -> list[str]:
    """Acknowledged messages, as (envelope id, seq), are in the log once, at the acknowledged position."""
    shown = [(r.payload["message_id"], r.seq) for r in log if r.payload["event"] == "user_message"]
    findings = [
        f"{envelope} was accepted at {seq} and is not there"
        for envelope, seq in accepted
        if (envelope, seq) not in shown
    ]
    counted = Counter(envelope for envelope, _ in shown)
    findings += [f"{envelope} is shown {count} times" for envelope, count in counted.items() if count > 1]
    known = {envelope for envelope, _ in accepted}
    findings += [f"{envelope} is shown and was never accepted" for envelope in counted if envelope not in known]
    if not findings and shown != list(accepted):
        findings.append(f"messages are shown out of order: {shown}")
    return findings
