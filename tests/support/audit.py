"""The auditor of logs and lanes: reads a log after a test and reports every broken guarantee.

Each function returns its findings as sentences; an empty list means a correct log.
Audited workers append what they do to one topic, in the form that `entry` returns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from magent2.bus.interface import BusMessage
from magent2.bus.operations import OLDEST, READ_LIMIT_MAX, Read
from magent2.bus.records import ClaimedLane, MailRef, Record

FINDINGS_SHOWN = 20

STARTED, SEEN, SETTLED, HANDED_BACK = "started", "seen", "settled", "handed back"
ENDS = (SETTLED, HANDED_BACK)


def assert_clean(findings: Sequence[str], context: str = "") -> None:
    shown = "\n  ".join(findings[:FINDINGS_SHOWN])
    assert not findings, f"{len(findings)} findings {context}\n  {shown}"


def whole_log(engine: Any, topic: str) -> list[Record]:
    """Every record of a topic."""
    records: list[Record] = []
    cursor = OLDEST
    while True:
        page = engine.call(Read(topic, cursor, READ_LIMIT_MAX))
        records.extend(page.records)
        if not page.records or records[-1].seq == page.last:
            return records
        cursor = records[-1].seq


# --- appends -----------------------------------------------------------------------------------------------------


def sequence_findings(records: Sequence[Record], floor: int = 0) -> list[str]:
    """Sequence numbers are 1, 2, 3 … above the trimmed records, and no id occurs twice."""
    findings = [
        f"seq {record.seq} stands where {number} belongs"
        for number, record in enumerate(records, start=floor + 1)
        if record.seq != number
    ]
    counted = Counter(record.id for record in records)
    findings += [f"{record_id} is there {count} times" for record_id, count in counted.items() if count > 1]
    return findings


def epoch_findings(records: Sequence[Record], bases: Sequence[int]) -> list[str]:
    """Sequence numbers are dense within each epoch and begin after its base, and no id occurs twice.

    `bases`: of the epochs after the first one, in order.
    """
    findings: list[str] = []
    for base, end in pairwise((0, *bases, 2**53)):
        part = [record for record in records if base < record.seq <= end]
        findings += [finding for finding in sequence_findings(part, base) if "stands where" in finding]
    return findings + [finding for finding in sequence_findings(records) if "times" in finding]


def append_findings(topics: Mapping[str, Sequence[Record]], acknowledged: Iterable[str]) -> list[str]:
    """Every append is in all of its topics or in none; every acknowledged append is there."""
    findings = [f"{topic}: {finding}" for topic, records in topics.items() for finding in sequence_findings(records)]
    ids = {topic: {record.id for record in records} for topic, records in topics.items()}
    anywhere = set().union(*ids.values())
    findings += [
        f"{record_id} is torn: missing in {topic}"
        for topic, present in ids.items()
        for record_id in sorted(anywhere - present)
    ]
    findings += [f"{record_id} was acknowledged and is gone" for record_id in sorted(set(acknowledged) - anywhere)]
    return findings


def series_findings(records: Iterable[BusMessage]) -> list[str]:
    """Each writer's own count, `n` of `writer`, goes 1, 2, 3 … in the order of the log."""
    last: Counter[str] = Counter()
    findings = []
    for record in records:
        writer, n = record.payload["writer"], record.payload["n"]
        if n != last[writer] + 1:
            findings.append(f"{writer} wrote {n} after {last[writer]}")
        last[writer] = n
    return findings


def share_findings(writers: Sequence[str], all_writers: set[str], parts: int = 3) -> list[str]:
    """No writer starves: each of the writers occurs in each part of the log."""
    size = len(writers) // parts
    return [
        f"{writer} is not in part {part + 1} of {parts}"
        for part in range(parts)
        for writer in sorted(all_writers - set(writers[part * size : (part + 1) * size]))
    ]


# --- lanes -------------------------------------------------------------------------------------------------------


def entry(act: str, claimed: ClaimedLane, n: int, mail: Iterable[MailRef] = ()) -> dict[str, Any]:
    """The payload that an audited worker appends to the audit topic, in the same append as the step it describes."""
    return {
        "act": act,
        "lane": claimed.owner.conversation,
        "token": claimed.owner.token,
        "attempt": claimed.attempt,
        "n": n,
        "mail": [list(ref) for ref in mail],
    }


@dataclass(frozen=True)
class Entry:
    """An entry of the audit topic."""

    act: str
    lane: str
    token: str
    attempt: int
    n: int
    mail: tuple[MailRef, ...]


def entries_of(trail: Iterable[BusMessage]) -> list[Entry]:
    return [
        Entry(**{**record.payload, "mail": tuple(MailRef(*ref) for ref in record.payload["mail"])}) for record in trail
    ]


def settled_mail(trail: Iterable[BusMessage]) -> set[MailRef]:
    return {ref for step in entries_of(trail) for ref in step.mail}


def lane_findings(mail: Mapping[str, Sequence[MailRef]], trail: Iterable[BusMessage]) -> list[str]:
    """All mail, by lane, was settled once and in order, and each lane had one owner at a time."""
    steps: dict[str, list[Entry]] = defaultdict(list)
    for step in entries_of(trail):
        steps[step.lane].append(step)
    findings = [f"lane {lane!r} was never given any mail" for lane in steps if lane not in mail]
    for lane, refs in mail.items():
        checks = (_mail_findings(refs, steps[lane]), _order_findings(steps[lane]), _owner_findings(steps[lane]))
        findings += [f"lane {lane!r}: {finding}" for check in checks for finding in check]
    return findings


def _mail_findings(refs: Sequence[MailRef], steps: Sequence[Entry]) -> Iterator[str]:
    settled = Counter(ref for step in steps for ref in step.mail)
    yield from (f"{ref.topic} {ref.seq} was not settled" for ref in refs if not settled[ref])
    yield from (f"{ref.topic} {ref.seq} was settled {count} times" for ref, count in settled.items() if count > 1)
    yield from (f"{ref.topic} {ref.seq} is not its mail" for ref in settled if ref not in set(refs))


def _order_findings(steps: Sequence[Entry]) -> Iterator[str]:
    """Heads are settled in the order of their inbox."""
    heads = [step.mail[0] for step in steps if step.act == SETTLED and step.mail]
    for topic in sorted({ref.topic for ref in heads}):
        for earlier, later in pairwise(ref.seq for ref in heads if ref.topic == topic):
            if later <= earlier:
                yield f"{topic} {later} was settled after {earlier}"


def _owner_findings(steps: Sequence[Entry]) -> Iterator[str]:
    owner: Entry | None = None
    gone: set[str] = set()
    for step in steps:
        if owner is None or step.token != owner.token:
            gone |= {owner.token} if owner is not None else set()
            if step.token in gone:
                yield f"old owner {step.token} wrote ({step.act})"
            yield from _takeover_findings(owner, step)
        else:
            yield from _next_step_findings(owner, step)
        owner = step


def _takeover_findings(before: Entry | None, step: Entry) -> Iterator[str]:
    if step.n != 1:
        yield f"owner {step.token} began with number {step.n}"
    if before is not None and before.act != SETTLED and step.attempt <= before.attempt:
        yield f"attempt {step.attempt} of {step.token} follows attempt {before.attempt}"


def _next_step_findings(before: Entry, step: Entry) -> Iterator[str]:
    if before.act in ENDS:
        yield f"{step.token} wrote ({step.act}) after it had {before.act}"
    if step.n != before.n + 1:
        yield f"{step.token} wrote number {step.n} after {before.n}"
