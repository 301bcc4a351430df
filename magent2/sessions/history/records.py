"""The topic `history:{conversation}`: the journal of its runs, and at the same time the memory of its agents.

Each run writes a `start` (the message it answers and its agent's specification), an `answer` per turn (the model's
response and the steers it has seen), a `tool` per call, and an `end`. A call that sends before it ends writes a
`sent`; a call that must not run twice writes a `begun` before it runs. Nothing closes a call whose worker died: the
next attempt runs it again and writes its `tool`, or, after a `begun`, writes that its outcome is unknown. Calls that
wait for a person write a `pause`, and each decision on them a `decision`. A run whose budget is used up writes a
`pause` too. An attempt that failed and is tried again writes a `retry`, one that found the circuit of its model open a
`defer`, one whose worker shut down a `give_back`. A suspected run whose calls all wait for answers writes a `wait`,
and another when one of them goes on. A `settings` record replaces the settings of the conversation from there on. A
`superseded` says that the answer of an ended run was replaced: later runs do not see it. A `compaction` replaces the
oldest part of the model's input by a summary, from a turn of the run on and for later runs. All records of this topic
are built here.

Now and then a worker writes a `snapshot` of what the records before it amount to (`fold.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypeAlias, TypedDict

from magent2.bus.records import NewRecord
from magent2.mail.headers import TRACE
from magent2.models.address import history_topic
from magent2.models.json_types import JsonObject

RELEASE = "release"  # header of a start: the release that started the run

EndStatus = Literal["finished", "failed", "stopped"]
CompactionReason: TypeAlias = Literal["size", "runs", "refused"]
DecisionStatus: TypeAlias = Literal["approved", "rejected", "expired"]

# --- Payloads of the records. Each also has `kind`, `conversation_id`, `run` and `agent`.


class SeenSteer(TypedDict):
    """A steer that an answer saw."""

    id: str
    source: str
    text: str
    seq: int


class AnswerRecord(TypedDict):
    """The payload of an `answer`. `response` is the model's response as JSON."""

    turn: int
    response: JsonObject
    speaker: str
    steers: NotRequired[list[SeenSteer]]
    estimate: NotRequired[int]  # tokens of the request, as estimated before the model counted them


class ToolRecord(TypedDict):
    """The payload of a `tool`: the result of a call.

    `output` is what the model sees, `value` the tool's return value if it differs. `sends` are the ids of the messages
    in the same append. `skip_turn`: the model need not be called again because of this result.
    """

    turn: int
    call_id: str
    name: str
    output: object
    sends: list[str]
    value: NotRequired[object]
    skip_turn: NotRequired[bool]


class SendFacts(TypedDict):
    """A message that a call sent: its id, the tool and digest of the call that sent it, and where it went."""

    id: str
    tool: str
    digest: str
    topics: list[str]


class SentRecord(SendFacts):
    """The payload of a `sent`. `place` is the number of the message within its call."""

    turn: int
    call_id: str
    place: int


class BegunRecord(TypedDict):
    """The payload of a `begun`. `place` is the number of the tool within its call."""

    turn: int
    call_id: str
    place: int
    name: str
    digest: str


class ApprovalRequest(TypedDict):
    """A call in a `pause`: it waits for approval until `due_ms` of the log clock.

    `expires_ms` is the same moment by the wall clock, as it was then. It is what people are shown.
    """

    call_id: str
    name: str
    speaker: str
    expires_ms: int
    due_ms: NotRequired[int]  # absent in records of 0.2
    client: NotRequired[bool]  # a tool of the client: the decision has its output


class PauseRecord(TypedDict):
    """The payload of a `pause`."""

    turn: int
    attempt: int
    calls: list[ApprovalRequest]
    budgets: NotRequired[list[list[str]]]  # what is used up, by kind and name: the run waits for more


class DecisionRecord(TypedDict):
    """The payload of a `decision`."""

    turn: int
    call_id: str
    status: DecisionStatus
    by: str
    reason: str | None
    output: NotRequired[object]  # of a tool of the client


class EndRecord(TypedDict):
    """The payload of an `end`."""

    status: EndStatus
    output: str | None
    usage: JsonObject | None


class SupersededRecord(TypedDict):
    """The payload of a `superseded`. `by` is the id of the message that is answered instead."""

    by: str


class Through(TypedDict):
    """The end of what a compaction covers: an earlier run, or a turn of the own run."""

    run: str
    turn: NotRequired[int]


class CompactionRecord(TypedDict):
    """The payload of a `compaction`, written before the model call of `turn`.

    `summary` stands for all input up to and including `through`. It is absent if it could not be made: then that part
    is left out. `model` made it, with `usage`. The sizes of the request before and after are estimates. `reason`: the
    request was over the agent's limit of tokens (`size`) or of runs (`runs`), or the model has refused it (`refused`).
    """

    turn: int
    through: Through
    reason: CompactionReason
    tokens_before: int
    tokens_after: int
    summary: NotRequired[str]
    model: NotRequired[str]
    usage: NotRequired[JsonObject]


class AgentSettings(TypedDict, total=False):
    """Settings of one agent in a session, in place of those of the roster."""

    instructions: str
    model: str


class RecordedSettings(TypedDict, total=False):
    """The settings in a `settings` record: the scenario, settings of its agents by name, instructions for all."""

    scenario_id: str
    agents: dict[str, AgentSettings]
    overlay: str


# --- Builders of the records


def run_id_of(agent: str, conversation: str, envelope_id: str) -> str:
    """The id of a run: the same for every attempt at the same message, on any worker."""
    text = "\x1f".join((agent, conversation, envelope_id))
    return "run-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def message_id_of(run_id: str, turn: int) -> str:
    """The id that the tokens of a turn share with the text that replaces them."""
    return f"{run_id}/{turn}"


@dataclass(frozen=True, slots=True)
class RunKey:
    """Identifies a run and builds its history records."""

    conversation: str
    run: str
    agent: str

    def start(
        self,
        envelope: Mapping[str, object],
        spec: Mapping[str, object],
        seen: int,
        trace: str | None = None,
        release: str = "",
        mail: int = 0,
    ) -> NewRecord:
        """The run starts. `seen`: the last seq of the history that its input contains.

        `trace` is the `traceparent` of the first attempt. Workers of an older `release` leave the run to newer ones.
        `mail` is the seq of the message in the inbox of the agent.
        """
        headers = {name: value for name, value in ((TRACE, trace), (RELEASE, release)) if value}
        facts = {"envelope": dict(envelope), "spec": dict(spec), "seen": seen, **({"mail": mail} if mail else {})}
        return self._record("start", facts, headers)

    def answer(
        self,
        turn: int,
        response: Mapping[str, object],
        speaker: str,
        steers: Sequence[SeenSteer] = (),
        estimate: int = 0,
    ) -> NewRecord:
        """The model answered. `steers` are those it saw first in this turn, `estimate` the size of the request."""
        answer: AnswerRecord = {"turn": turn, "response": dict(response), "speaker": speaker}
        if steers:
            answer["steers"] = list(steers)
        if estimate:
            answer["estimate"] = estimate
        return self._record("answer", answer)

    def tool(
        self, turn: int, call_id: str, name: str, output: object, sends: Iterable[str] = (), **more: object
    ) -> NewRecord:
        """A call has a result. `more` are optional fields of `ToolRecord`."""
        result: ToolRecord = {"turn": turn, "call_id": call_id, "name": name, "output": output, "sends": list(sends)}
        return self._record("tool", {**result, **more})

    def sent(self, turn: int, call_id: str, place: int, facts: SendFacts) -> NewRecord:
        """A message was sent before its call has a result."""
        sent: SentRecord = {"turn": turn, "call_id": call_id, "place": place, **facts}
        return self._record("sent", sent)

    def begun(self, turn: int, call_id: str, place: int, name: str, digest: str) -> NewRecord:
        """A tool that must not run twice is about to run."""
        begun: BegunRecord = {"turn": turn, "call_id": call_id, "place": place, "name": name, "digest": digest}
        return self._record("begun", begun)

    def pause(
        self, turn: int, attempt: int, calls: Sequence[ApprovalRequest], budgets: Sequence[Sequence[str]] = ()
    ) -> NewRecord:
        """Calls wait for approval, or the run waits for more of these budgets; the attempt ends here."""
        pause: PauseRecord = {"turn": turn, "attempt": attempt, "calls": list(calls)}
        if budgets:
            pause["budgets"] = [list(budget) for budget in budgets]
        return self._record("pause", pause)

    def decision(
        self,
        turn: int,
        call_id: str,
        status: DecisionStatus,
        by: str,
        reason: str | None = None,
        output: object = None,
    ) -> NewRecord:
        """A waiting call was decided on, or its client has sent the output."""
        decision: DecisionRecord = {"turn": turn, "call_id": call_id, "status": status, "by": by, "reason": reason}
        if output is not None:
            decision["output"] = output
        return self._record("decision", decision)

    def retry(self, attempt: int, clock_ms: int) -> NewRecord:
        """This attempt failed at `clock_ms` of the log clock; another one will follow."""
        return self._record("retry", {"attempt": attempt, "clock_ms": clock_ms})

    def defer(self, attempt: int, clock_ms: int) -> NewRecord:
        """This attempt did not call the model, because its provider does not answer; another one will follow."""
        return self._record("defer", {"attempt": attempt, "clock_ms": clock_ms})

    def give_back(self, attempt: int) -> NewRecord:
        """The worker of this attempt shut down; the next one continues."""
        return self._record("give_back", {"attempt": attempt})

    def wait(self, attempt: int, waits: bool) -> NewRecord:
        """All calls of this attempt wait for answers (`waits`), or one of them goes on.

        Only a suspected run records this: if its worker dies while it waits, the attempt does not count as a crash.
        """
        return self._record("wait", {"attempt": attempt, "waits": waits})

    def end(self, status: EndStatus, output: str | None = None, usage: Mapping[str, object] | None = None) -> NewRecord:
        """The run ended."""
        end: EndRecord = {"status": status, "output": output, "usage": dict(usage) if usage else None}
        return self._record("end", end)

    def superseded(self, by: str) -> NewRecord:
        """The answer of the run was replaced: the message `by` is answered instead."""
        superseded: SupersededRecord = {"by": by}
        return self._record("superseded", superseded)

    def compaction(self, compaction: CompactionRecord) -> NewRecord:
        """The oldest part of the input is replaced by a summary."""
        return self._record("compaction", compaction)

    def _record(self, kind: str, fields: Mapping[str, object], headers: Mapping[str, str] | None = None) -> NewRecord:
        own = {"kind": kind, "conversation_id": self.conversation, "run": self.run, "agent": self.agent}
        return NewRecord(history_topic(self.conversation), {**own, **fields}, headers=headers or {})


def settings_record(conversation: str, settings: RecordedSettings) -> NewRecord:
    """The settings from here on. They replace all earlier ones."""
    payload = {"kind": "settings", "conversation_id": conversation, "settings": dict(settings)}
    return NewRecord(history_topic(conversation), payload)
