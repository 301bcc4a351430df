"""Folds of a conversation's logs: the input of a model, the transcript, the usage. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypeAlias, TypedDict, cast

from magent2.bus.records import Record
from magent2.sessions.history import History, RunRecord, SeenSteer, sum_usage
from magent2.sessions.stream import REPLY_TO, flat_event

InputItem: TypeAlias = dict[str, object]  # an item of the input of a model, in the form of the Responses API
SteerFormat: TypeAlias = Callable[[str, str], str]  # formats a steer for the model, from its source and text

REPLAYED_TYPES = frozenset({"message", "function_call", "reasoning"})
# Shown to the model in place of the result of a call that has none when its run has ended
STOPPED_CALL = "[no result: the run ended before this call was answered]"


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The input of a model before the run's own turns.

    `runs`: number of earlier runs in it; `left_out`: number of the oldest runs that are not.
    """

    items: list[InputItem]
    left_out: int
    runs: int = 0


def label_sender(source: str, text: str) -> str:
    return f"[{source}]: {text}"


def model_input(history: History, run: RunRecord, runs_max: int, block: SteerFormat = label_sender) -> ModelInput:
    """The earlier runs that the run may see, up to its start, then the question of this run."""
    earlier, left_out = history.earlier_runs(run)
    kept = earlier[max(0, len(earlier) - runs_max) :] if runs_max else []
    items = [item for other in kept for item in run_items(other, block)]
    return ModelInput([*items, question_item(run)], left_out + len(earlier) - len(kept), len(kept))


def run_items(run: RunRecord, block: SteerFormat = label_sender) -> list[InputItem]:
    """A run as input items: the question, then per turn the steers, the model's output and the tool results."""
    items = [question_item(run)]
    answered = False
    for turn in sorted(run.answers):
        output = run.answers[turn]["response"].get("output", ())
        items.extend(steer_items(run.steers(turn), block))
        items.extend(_as_input(item) for item in _remembered(output))
        items.extend(_results(run, turn, output))
        answered = True
    if not answered and run.end is not None and run.end.get("output"):
        items.append({"role": "assistant", "content": run.end["output"]})
    return items


def steer_items(steers: Iterable[SeenSteer | Mapping[str, str]], block: SteerFormat) -> list[InputItem]:
    return [{"role": "user", "content": block(steer["source"], steer["text"])} for steer in steers]


def question_item(run: RunRecord) -> InputItem:
    """The message that the run answers. If an agent sent it, the text names the agent."""
    sender = str(run.envelope.get("sender", ""))
    text = str(run.envelope.get("content") or "")
    return {"role": "user", "content": label_sender(sender, text) if sender.startswith("agent:") else text}


def _remembered(output: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The output items that any model accepts as input again.

    Calls of tools that the provider ran are left out; the text after them tells their results. Reasoning items right
    before such a call are left out too, because providers refuse a reasoning item without the item it led to.
    """
    kept: list[Mapping[str, object]] = []
    for item in output:
        if item.get("type", "message") in REPLAYED_TYPES:
            kept.append(item)
            continue
        while kept and kept[-1].get("type") == "reasoning":
            kept.pop()
    return kept


def _as_input(item: Mapping[str, object]) -> InputItem:
    """An output item as an input item: without the fields that only answers have."""
    return {
        name: value for name, value in item.items() if name not in ("status", "parsed_arguments") and value is not None
    }


def _results(run: RunRecord, turn: int, output: Iterable[Mapping[str, object]]) -> Iterable[InputItem]:
    for call in function_calls(output):
        recorded = run.tools.get((turn, call["call_id"]))
        result = STOPPED_CALL if recorded is None else recorded["output"]
        yield {"type": "function_call_output", "call_id": call["call_id"], "output": result}


class FunctionCallItem(TypedDict):
    """A call of a function tool in the output of a model."""

    call_id: str
    name: str
    arguments: NotRequired[str]


class McpApprovalItem(TypedDict):
    """A call on a hosted MCP server in the output of a model. The provider makes it after it was approved."""

    id: str
    server_label: str
    name: str
    arguments: NotRequired[str]


def function_calls(output: Iterable[Mapping[str, object]]) -> Sequence[FunctionCallItem]:
    return [cast(FunctionCallItem, item) for item in output if item.get("type") == "function_call"]


def mcp_approval_requests(output: Iterable[Mapping[str, object]]) -> Sequence[McpApprovalItem]:
    return [cast(McpApprovalItem, item) for item in output if item.get("type") == "mcp_approval_request"]


def approvable_calls(output: Iterable[Mapping[str, object]]) -> dict[str, tuple[str, str]]:
    """Name and arguments of every call in an answer that can need approval, by the id of the decision."""
    items = list(output)
    calls = {call["call_id"]: (call["name"], call.get("arguments") or "") for call in function_calls(items)}
    hosted = {
        item["id"]: (f"{item['server_label']}.{item['name']}", item.get("arguments") or "")
        for item in mcp_approval_requests(items)
    }
    return {**calls, **hosted}


class TranscriptLine(TypedDict):
    """A text of a person or an agent. `reply_to` is the id of the message that it answers."""

    seq: int
    message_id: str | None
    role: str | None
    agent_id: str | None
    text: str
    timestamp_ms: int
    reply_to: str | None


def transcript_line(session_id: str, record: Record) -> TranscriptLine | None:
    """The record as a line of the transcript; `None` if it is not a text of a person or an agent."""
    event = flat_event(session_id, record)
    if event is None or event["type"] != "message" or not event["text"]:
        return None
    reply_to = event["data"].get(REPLY_TO)
    return {
        "seq": event["seq"],
        "message_id": event["message_id"],
        "role": event["role"],
        "agent_id": event["agent_id"],
        "text": event["text"],
        "timestamp_ms": event["timestamp_ms"],
        "reply_to": reply_to if isinstance(reply_to, str) else None,
    }


def transcript(session_id: str, records: Iterable[Record]) -> list[TranscriptLine]:
    lines = (transcript_line(session_id, record) for record in records)
    return [line for line in lines if line is not None]


class UsageTotals(TypedDict):
    """The usage of all ended runs, their number, and the usage by agent."""

    usage: dict[str, object]
    runs: int
    by_agent: dict[str, dict[str, object]]


def session_usage(history: History) -> UsageTotals:
    """Add up the usage of all ended runs, those that the history has dropped too."""
    total, runs = dict(history.dropped.usage), history.dropped.ended
    by_agent = {agent: dict(usage) for agent, usage in history.dropped.by_agent.items()}
    for run in history.runs.values():
        usage = run.end.get("usage") if run.end is not None else None
        runs += run.end is not None
        if isinstance(usage, Mapping):
            total = sum_usage(total, usage)
            by_agent[run.agent] = sum_usage(by_agent.get(run.agent, {}), usage)
    return {"usage": total, "runs": runs, "by_agent": by_agent}
