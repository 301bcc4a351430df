"""The auditor of journals: every answer and result is recorded once, and every message is sent once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from magent2.models.envelope import MessageEnvelope
from tests.simulation.approvers import Approvers, approval_findings
from tests.simulation.blocks import Posted, block_findings
from tests.simulation.calls import MODELS, call_ids, has_two_models

Payload = Mapping[str, Any]


def journal_findings(
    history: Sequence[Payload], events: Sequence[Payload], posted: Posted, approvers: Approvers
) -> Iterator[str]:
    marks: dict[str, list[Payload]] = defaultdict(list)
    for mark in history:
        marks[mark["run"]].append(mark)
    for run in marks.values():
        if any(mark["kind"] == "answer" for mark in run):
            yield from _run_findings(run, set().union(*posted.values()))
            yield from _model_findings(run, events)
            yield from block_findings(run, run[0]["conversation_id"], posted)
            yield from approval_findings(run, events, approvers)


def _model_findings(run: Sequence[Payload], events: Sequence[Payload]) -> Iterator[str]:
    """Every answer names the model that gave it, and the output that of the last answer."""
    mail = run[0]["envelope"]["id"]
    if not has_two_models(mail):
        return
    named = [mark["response"].get("model") for mark in run if mark["kind"] == "answer"]
    if not set(named) <= set(MODELS):
        yield f"the answers of {mail} name the models {named}"
    outputs = [event for event in events if event.get("event") == "output" and event.get("run_id") == run[0]["run"]]
    for event in outputs:
        if event.get("model") != named[-1]:
            yield f"the output of {mail} names {event.get('model')}, its last answer {named[-1]}"


def _run_findings(run: Sequence[Payload], posted: set[str]) -> Iterator[str]:
    envelope = MessageEnvelope.model_validate(run[0]["envelope"])
    status = next((mark["status"] for mark in run if mark["kind"] == "end"), "")
    asked = call_ids(envelope)
    turns = [mark["turn"] for mark in run if mark["kind"] == "answer"]
    if turns != list(range(len(turns))) or (status == "finished" and len(turns) != len(asked) + 1):
        yield f"{envelope.id} has {status} with the answers {turns}, its turns with calls are {asked}"
    calls = Counter((mark["turn"], mark["call_id"]) for mark in run if mark["kind"] == "tool")
    wanted = {(turn, call) for turn, names in enumerate(asked) for call in names}
    if not set(calls) <= wanted or (status == "finished" and set(calls) != wanted):
        yield f"{envelope.id} has {status} with the calls {sorted(calls)}, it asked for {sorted(wanted)}"
    for call, count in calls.items():
        if count > 1:
            yield f"{call} of {envelope.id} is recorded {count} times"
    compacted = Counter(mark["turn"] for mark in run if mark["kind"] == "compaction")
    if any(count > 1 for count in compacted.values()):
        yield f"{envelope.id} was compacted twice for one turn: {compacted}"
    for name in (name for mark in run if mark["kind"] == "tool" for name in mark["sends"]):
        if name not in posted:
            yield f"{envelope.id} says that it has sent {name}, which is in no log"
