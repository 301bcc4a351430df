"""Subagents: an agent starts another agent for a task, sends it messages while it works, and gets its result.

A subagent works in a conversation of its own, below that of the agent that started it. Its run is a run like any other,
on any worker. Only the conversation that started it may send it messages and wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, SetHead
from magent2.errors import Refused
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import ACTIVE_AGENT, OWNER
from magent2.models.address import check_name, stream_topic, subagent_id_of
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import SubagentEvent
from magent2.models.json_types import JsonObject
from magent2.sessions.steering import STEER_MAX_CHARS
from magent2.sessions.store import HIDDEN
from magent2.sessions.stream import event_payload, payload_record
from magent2.sessions.subagents import DEPTH, PARENT, STARTER, TASK, count_start, depth_below
from magent2.tools.definition import (
    ToolAnswer,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    parse_arguments,
)
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.sending import Arguments, Payload, SendingTool, SendResult, definition_of, plan_envelope
from magent2.tools.wait_for_answer import (
    ANSWER_TIMEOUT_MAX_S,
    ANSWER_TIMEOUT_S,
    AgentLane,
    check_wait,
    record_wait,
    wait_for_answer,
)

TASK_MAX_CHARS = 20_000

START, MESSAGE, RESULT = "start_agent", "message_agent", "agent_result"
NAMES = (START, MESSAGE, RESULT)


def subagent_tools(agents: Sequence[str]) -> list[ToolDefinition]:
    """The tools of an agent that may start these agents; none if it may start no agent."""
    return [definition_of(StartAgent(tuple(agents))), definition_of(MessageAgent()), result_tool()] if agents else []


class _ImmediateArguments(Arguments):
    """Sent immediately: a later call in the same block may wait for the result."""

    @property
    def urgent(self) -> bool:
        return True


class StartArguments(_ImmediateArguments):
    agent: str = Field(description="Name of the agent to start.")
    task: str = Field(
        description="What the agent is to do. It knows nothing else.", min_length=1, max_length=TASK_MAX_CHARS
    )


class StartPayload(Payload):
    conversation_id: str
    sender: str
    agent: str
    task: str
    owner: str | None
    depth: int


class StartAgent(SendingTool[StartArguments, StartPayload]):
    name = START
    arguments = StartArguments
    payload = StartPayload

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        names = ", ".join(allowed)
        self.description = (
            f"Start another agent for a task, without waiting for it. Available agents: {names}."
            f" Send it messages with {MESSAGE}, wait for its result with {RESULT}."
            " In Python code it is started immediately and goes on working if the code fails later."
        )

    async def prepare(self, log: Log, arguments: StartArguments, context: ToolExecutionContext) -> StartPayload:
        if arguments.agent not in self._allowed:
            raise Refused(
                f"{arguments.agent[:80]!r} cannot be started from here; available: {', '.join(self._allowed)}"
            )
        run = context.run
        if arguments.agent == run.agent:
            raise Refused("an agent cannot start itself, because it does not receive its own messages; start another")
        (stream,) = await log.describe(stream_topic(run.conversation_id))
        head = stream.head
        # The number of starts is checked in `perform` alone: a repeat of the last permitted start is not refused.
        return StartPayload(
            conversation_id=run.conversation_id,
            sender=f"agent:{run.agent}",
            agent=arguments.agent,
            task=arguments.task,
            owner=head.get(OWNER),
            depth=depth_below(head),
        )

    async def perform(self, log: Log, payload: StartPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        """One append: the task in a new conversation, the event in the parent conversation, and the count of starts."""
        run = context.run
        (parent,) = await log.describe(stream_topic(payload.conversation_id))
        count = count_start(payload.conversation_id, run.agent, run.run_id, parent.head)
        child = check_name(subagent_id_of(payload.conversation_id, payload.agent, mark.id), "subagent")
        envelope = MessageEnvelope(
            id=mark.id,
            conversation_id=child,
            sender=payload.sender,
            recipient=f"agent:{payload.agent}",
            content=payload.task,
        )
        facts = SendOptions(
            principal=run.principal,
            hops=run.hops + 1,
            trace=mark.trace,
            root_run=run.root.run or None,
            root_conversation=run.root.conversation or None,
            with_records=(payload_record(_started(payload, child, run, mark)),),
            with_heads=(SetHead(stream_topic(child), _head(payload, run, mark)), count.head),
            only_if=(count.only_if,),
        )
        return await plan_envelope(log, envelope, facts)

    def target(self, payload: StartPayload) -> str:
        return f"agent:{payload.agent}"

    def answer(self, payload: StartPayload, result: SendResult) -> ToolAnswer:
        child = subagent_id_of(payload.conversation_id, payload.agent, result.id)
        return {"ok": True, "subagent_id": child, "held": result.held}

    async def respond(
        self, arguments: StartArguments, context: ToolExecutionContext
    ) -> ToolExecutionResult[ToolAnswer]:
        """Start the agent, and note its id: a block that fails has no other way to report it."""
        result = await super().respond(arguments, context)
        if context.scope is not None:
            context.scope.started_agents.append(str(result.typed_result["subagent_id"]))
        return result


def _head(payload: StartPayload, run: RunFacts, mark: SendMark) -> dict[str, object]:
    """The head of the subagent's conversation."""
    owned = {} if payload.owner is None else {OWNER: payload.owner}
    below = {PARENT: payload.conversation_id, STARTER: run.agent, DEPTH: payload.depth}
    return {**below, TASK: mark.id, HIDDEN: True, **owned}


def _started(payload: StartPayload, child: str, run: RunFacts, mark: SendMark) -> JsonObject:
    event = SubagentEvent(
        conversation_id=payload.conversation_id,
        run_id=run.run_id,
        agent=run.agent,
        subagent_id=child,
        name=payload.agent,
        task=payload.task,
        envelope_id=mark.id,
    )
    return {**event_payload(event), "id": f"subagent:{mark.id}"}


class MessageArguments(_ImmediateArguments):
    subagent_id: str = Field(description=f"The id that {START} returned.")
    text: str = Field(description="The text of the message.", min_length=1, max_length=STEER_MAX_CHARS)


class MessagePayload(Payload):
    subagent_id: str
    agent: str
    sender: str
    text: str


class MessageAgent(SendingTool[MessageArguments, MessagePayload]):
    name = MESSAGE
    description = (
        "Send a message to an agent that you started. It reads it before its next step, or answers it if it is done."
        " In Python code it is sent immediately, even if the code fails later."
    )
    arguments = MessageArguments
    payload = MessagePayload

    async def prepare(self, log: Log, arguments: MessageArguments, context: ToolExecutionContext) -> MessagePayload:
        head = await own_subagent(log, context.run, arguments.subagent_id)
        return MessagePayload(
            subagent_id=arguments.subagent_id,
            agent=str(head[ACTIVE_AGENT]),
            sender=f"agent:{context.run.agent}",
            text=arguments.text,
        )

    async def perform(self, log: Log, payload: MessagePayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        envelope = MessageEnvelope(
            id=mark.id,
            conversation_id=payload.subagent_id,
            sender=payload.sender,
            recipient=f"agent:{payload.agent}",
            content=payload.text,
        )
        run = context.run
        facts = SendOptions(
            principal=run.principal,
            hops=run.hops + 1,
            trace=mark.trace,
            root_run=run.root.run or None,
            root_conversation=run.root.conversation or None,
        )
        return await plan_envelope(log, envelope, facts, steer=True)

    def target(self, payload: MessagePayload) -> str:
        return payload.subagent_id

    def answer(self, payload: MessagePayload, result: SendResult) -> ToolAnswer:
        return {"ok": True, "message_id": result.id, "held": result.held}


async def own_subagent(log: Log, run: RunFacts, subagent_id: str) -> Mapping[str, object]:
    """The head of a subagent that was started in this conversation; `Refused` for any other."""
    (stream,) = await log.describe(stream_topic(check_name(subagent_id, "subagent_id")))
    head = stream.head
    if stream.deleted or head.get(PARENT) != run.conversation_id or not head.get(ACTIVE_AGENT):
        raise Refused(f"{subagent_id[:80]!r} was not started in this conversation; use the id that {START} returned")
    return head


class ResultArguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    subagent_id: str = Field(description=f"The id that {START} returned.")
    message_id: str | None = Field(
        default=None,
        description=f"Wait for the answer to this message of {MESSAGE}. Defaults to the answer to the task.",
    )
    timeout_s: float = Field(
        default=ANSWER_TIMEOUT_S, gt=0, le=ANSWER_TIMEOUT_MAX_S, description="How long to wait, in seconds."
    )


def result_tool() -> ToolDefinition:
    """The tool that waits for a subagent. It releases the slot of its run while it waits."""

    async def execute(raw: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[ToolAnswer]:
        arguments = parse_arguments(RESULT, ResultArguments, raw)
        head = await own_subagent(Log(context.run.bus), context.run, arguments.subagent_id)
        lane = AgentLane(str(head[ACTIVE_AGENT]), arguments.subagent_id)
        await check_wait(Log(context.run.bus), context.run, lane)
        # A subagent waits only for its own subagents, so this wait cannot close a cycle and needs no condition.
        await record_wait(context, lane)
        envelope_id = arguments.message_id or str(head[TASK])
        wait = await wait_for_answer(context, lane, envelope_id, arguments.timeout_s)
        answer: ToolAnswer = {"ok": wait.status == "finished", "status": wait.status, "text": wait.text}
        if wait.reason is not None:
            answer["reason"] = wait.reason
        return ToolExecutionResult(answer, answer)

    schema = ResultArguments.model_json_schema()
    schema.pop("title", None)
    signature = ToolSignature(RESULT, "Wait for an agent that you started, and return its answer.", schema)
    return ToolDefinition(signature, {"type": "object"}, execute, parses_arguments=True)
