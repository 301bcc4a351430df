"""The auditor of steers: each was seen by one recorded turn or became the input of one run, with one receipt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.operations import Lanes
from magent2.bus.records import Record
from tests.support.audit import sequence_findings, whole_log
from tests.support.worker_fixture import AGENT

Seen = tuple[str, int]  # run and turn


def steer_findings(engine: Engine, conversation: str, steers: Collection[str], agent: str = AGENT) -> list[str]:
    """Findings on the outcomes of these envelopes, on a log without pending mail."""
    stream, history = (whole_log(engine, f"{kind}:{conversation}") for kind in ("stream", "history"))
    findings = sequence_findings(stream) + sequence_findings(history)
    findings += fate_findings(steers, stream, history)
    findings += order_findings(history, whole_log(engine, f"chat:{agent}"), steers)
    left = [lane for lane in engine.call(Lanes(agent)) if lane.conversation == conversation]
    return [f"{conversation}: {finding}" for finding in (*findings, *(f"left over: {lane}" for lane in left))]


def fate_findings(steers: Collection[str], stream: Sequence[Record], history: Sequence[Record]) -> list[str]:
    seen, inputs = _seen(history), Counter(_inputs(history))
    receipts: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for event in (record.payload for record in stream if record.payload["event"] == "message_received"):
        for message in event["messages"]:
            receipts[message["id"]].append((message["outcome"], (event["run_id"], event.get("turn"))))
    findings = []
    for name in steers:
        fates = [("seen", place) for place in seen[name]] + [("input", None)] * inputs[name]
        if len(fates) != 1:
            findings.append(f"{name} was seen by {seen[name]} and was the input of {inputs[name]} runs")
        if len(receipts[name]) != 1:
            findings.append(f"{name} has the receipts {receipts[name]}")
        elif fates and not _agree(fates[0], receipts[name][0]):
            findings.append(f"{name} became {fates[0]}, its receipt says {receipts[name][0]}")
    return findings


def _agree(fate: tuple[str, Any], receipt: tuple[str, Any]) -> bool:
    return fate[0] == receipt[0] and (fate[0] == "input" or fate[1] == receipt[1])


def _seen(history: Sequence[Record]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = defaultdict(list)
    for payload in (record.payload for record in history if record.payload["kind"] == "answer"):
        for steer in payload.get("steers", ()):
            found[steer["id"]].append((payload["run"], payload["turn"]))
    return found


def _inputs(history: Sequence[Record]) -> list[str]:
    return [record.payload["envelope"]["id"] for record in history if record.payload["kind"] == "start"]


def order_findings(history: Sequence[Record], inbox: Sequence[Record], steers: Collection[str]) -> list[str]:
    """Steers are seen in the order in which they arrived."""
    came = {record.payload.get("id"): record.seq for record in inbox}
    order: list[str] = []
    for payload in (record.payload for record in history):
        if payload["kind"] == "start":
            order.append(payload["envelope"]["id"])
        elif payload["kind"] == "answer":
            order += [steer["id"] for steer in payload.get("steers", ())]
    places = [came[name] for name in order if name in steers]
    return [] if places == sorted(places) else [f"steers were seen out of order: {places}"]
