"""Folds of a conversation's logs: the input of a model, the transcript, the usage. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypeAlias, TypedDict, cast

from magent2.bus.records import Record
from magent2.models.files import attachments_of, file_part
from magent2.models.run_options import RUN_OPTIONS
from magent2.sessions.history import History, RunRecord, SeenSteer, sum_usage
from magent2.sessions.stream import REPLY_TO, RUN_KIND, flat_event

InputItem: TypeAlias = dict[str, object]  # an item of the input of a model, in the form of the Responses API
SteerFormat: TypeAlias = Callable[[str, str], str]  # formats a steer for the model, from its source and text

SYSTEM = "system"  # role of a compaction in a transcript
REPLAYED_TYPES = frozenset({"message", "function_call", "reasoning"})
# Shown to the model in place of the result of a call that has none when its run has ended
STOPPED_CALL = "[no result: the run ended before this call was answered]"
# Begin the item that stands for what a compaction covers. A user may write the same, so no code looks for them.
SUMMARY_HEADING = "[Summary of the conversation so far. The messages that it covers are not shown any more.]"
NO_SUMMARY = "[The beginning of the conversation is left out: it was too long for the model, and there is no summary.]"


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The input of a model before the run's own turns.

    `runs` are the earlier runs in it, in order, each with the number of items up to its end. The question begins behind
    them, at `question`. `left_out`: number of the oldest runs that are neither in it nor in its summary.
    """

    items: list[InputItem]
    left_out: int
    runs: tuple[tuple[str, int], ...] = ()
    question: int = 0


class SummaryFacts(TypedDict):
    """The part of a compaction that a model sees. The summary is absent if it could not be made."""

    summary: NotRequired[str]


def summary_item(compaction: SummaryFacts) -> InputItem:
    """The item that replaces what a compaction covers."""
    summary = compaction.get("summary")
    return {"role": "user", "content": NO_SUMMARY if summary is None else f"{SUMMARY_HEADING}\n\n{summary}"}


def label_sender(source: str, text: str) -> str:
    return f"[{source}]: {text}"


def model_input(
    history: History, run: RunRecord, runs_max: int | None = None, block: SteerFormat = label_sender
) -> ModelInput:
    """The last compaction, the earlier runs behind it that the run may see, up to its start, then its question.

    With `runs_max`, the last runs only, and no summary of those before.
    """
    earlier, left_out = history.earlier_runs(run)
    base = history.compaction_before(run)
    if runs_max is not None:
        base, kept = None, earlier[max(0, len(earlier) - runs_max) :]
        earlier, left_out = kept, left_out + len(earlier) - len(kept)
    items = [] if base is None else [summary_item(cast(SummaryFacts, base.record))]
    ends: list[tuple[str, int]] = []
    for other in earlier:
        through = None if base is None else base.record["through"]
        covered = through.get("turn") if through is not None and through["run"] == other.run else None
        items += run_items(other, block, covered)
        ends.append((other.run, len(items)))
    return ModelInput([*items, *question_items(run)], left_out, tuple(ends), len(items))


def run_items(run: RunRecord, block: SteerFormat = label_sender, covered: int | None = None) -> list[InputItem]:
    """A run as input items: the question, then per turn the steers, the model's output and the tool results.

    Turns up to `covered` are left out: a summary covers them.
    """
    items = question_items(run)
    answered = False
    for turn in sorted(run.answers):
        answered = True
        if covered is not None and turn <= covered:
            continue
        output = run.answers[turn]["response"].get("output", ())
        items.extend(steer_items(run.steers(turn), block))
        items.extend(_as_input(item) for item in _remembered(output))
        items.extend(_results(run, turn, output))
    if not answered and run.end is not None and run.end.get("output"):
        items.append({"role": "assistant", "content": run.end["output"]})
    return items


def steer_items(steers: Iterable[SeenSteer | Mapping[str, str]], block: SteerFormat) -> list[InputItem]:
    return [{"role": "user", "content": block(steer["source"], steer["text"])} for steer in steers]


def question_items(run: RunRecord) -> list[InputItem]:
    """The message that the run answers: the items that it brings for the model, or its text. Parts name its files."""
    metadata = run.envelope.get("metadata") or {}
    given = (metadata.get(RUN_OPTIONS) or {}).get("input")
    files = [file_part(file) for file in attachments_of(metadata)]
    if given:
        named = {part.get("file_id") for item in given for part in _parts(item)}
        files = [part for part in files if part["file_id"] not in named]
        return [*(dict(item) for item in given), *([{"role": "user", "content": files}] if files else ())]
    question = question_item(run)
    if not files:
        return [question]
    own = [{"type": "input_text", "text": question["content"]}] if str(question["content"]).strip() else []
    return [{"role": "user", "content": [*own, *files]}]


def _parts(item: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    content = item.get("content")
    return content if isinstance(content, list) else ()


def question_item(run: RunRecord) -> InputItem:
    """The text of the message that the run answers. If an agent sent it, the text names the agent."""
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


class TranscriptCompaction(TypedDict):
    """What a compaction covers: all runs up to `through_run`, or of that run the turns up to `through_turn`."""

    reason: str | None
    model: str | None
    run_id: str | None
    through_run: str
    through_turn: int | None
    tokens_before: int
    tokens_after: int


class TranscriptLine(TypedDict):
    """A text of a person or an agent, or the summary of a compaction, which is empty if it could not be made.

    `reply_to` is the id of the message that a text answers.
    """

    seq: int
    message_id: str | None
    role: str | None
    agent_id: str | None
    text: str
    timestamp_ms: int
    reply_to: str | None
    compaction: TranscriptCompaction | None


def transcript_line(session_id: str, record: Record) -> TranscriptLine | None:
    """The record as a line of the transcript; `None` if it is neither a text nor a compaction."""
    event = flat_event(session_id, record)
    if event is None:
        return None
    data, compaction = event["data"], None
    role, text, reply_to = event["role"], event["text"], data.get(REPLY_TO)
    if event["type"] == "compacted":
        compaction = cast(TranscriptCompaction, {name: data.get(name) for name in TranscriptCompaction.__annotations__})
        compaction["reason"] = event["reason"]
        role, text = SYSTEM, str(data.get("summary") or "")
    elif event["type"] != "message" or not text:
        return None
    return {
        "seq": event["seq"],
        "message_id": event["message_id"],
        "role": role,
        "agent_id": event["agent_id"],
        "text": text or "",
        "timestamp_ms": event["timestamp_ms"],
        "reply_to": reply_to if isinstance(reply_to, str) else None,
        "compaction": compaction,
    }


class TranscriptFold:
    """Takes the records of a stream in order and keeps the texts of runs that were not superseded, and compactions.

    A run is superseded before the next run starts. Then a compaction that covers a part of it does not count any more.
    `open_messages` are messages on the transcript whose run may still be superseded by a record behind those that were
    taken.
    """

    def __init__(self, session_id: str) -> None:
        self.lines: list[TranscriptLine] = []
        self._session_id = session_id
        self._open: dict[str, bool] = {}  # by message: whether its run has started
        self._question: str | None = None  # the message that the current run answers

    @property
    def open_messages(self) -> tuple[str, ...]:
        return tuple(self._open)

    def take(self, record: Record) -> bool:
        """Add a record. Return whether it gave a line."""
        payload = {} if record.erased else record.payload
        if payload.get("event") == "superseded":
            self.supersede(payload)
        elif payload.get("event") == "run" and payload.get("status") == "started" and not payload.get(RUN_KIND):
            self._start(str(payload.get("envelope_id")))
        line = transcript_line(self._session_id, record)
        if line is None:
            return False
        self.lines.append(line)
        self._note(line, payload)
        return True

    def supersede(self, payload: Mapping[str, object]) -> None:
        """Leave out the run that a `superseded` event names, and the messages that go with it."""
        run_id, question, listed = payload.get("run_id"), payload.get("envelope_id"), payload.get("messages")
        messages = set(listed) if isinstance(listed, list) else set()
        self._open.pop(str(question), None)
        self.lines = [
            line
            for line in self.lines
            if line["message_id"] not in messages
            and line["reply_to"] != question
            and (line["message_id"] or "").partition("/")[0] != run_id
            and not (line["compaction"] and line["compaction"]["through_run"] == run_id)
        ]

    def _start(self, message_id: str) -> None:
        self._question = message_id
        self._open = {name: started for name, started in self._open.items() if not started}
        if message_id in self._open:
            self._open[message_id] = True

    def _note(self, line: TranscriptLine, payload: Mapping[str, object]) -> None:
        is_question = payload.get("event") == "user_message"
        if is_question and not payload.get("steer") and not str(payload.get("sender", "")).startswith("agent:"):
            self._open[str(line["message_id"])] = False
        elif line["reply_to"] is not None:
            self._open.setdefault(line["reply_to"], True)
        elif line["compaction"] is not None and self._question is not None:
            self._open.setdefault(self._question, True)


def transcript(session_id: str, records: Iterable[Record]) -> list[TranscriptLine]:
    fold = TranscriptFold(session_id)
    for record in records:
        fold.take(record)
    return fold.lines


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
