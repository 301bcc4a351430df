"""An example tool that sends a message to an agent and can wait for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.mail.delivery import SendOptions
from magent2.models.envelope import MessageEnvelope
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult
from magent2.tools.interface import SendMark
from magent2.tools.sending import Arguments, Payload, SendingTool, definition_of, plan_envelope
from magent2.tools.wait_for_answer import AgentLane, check_wait, wait_for_answer, with_wait


class AskArguments(Arguments):
    agent: str
    conversation: str
    text: str
    wait: bool = True
    timeout_s: float = 30.0

    @property
    def urgent(self) -> bool:
        return self.now or self.wait


class AskPayload(Payload):
    agent: str
    conversation: str
    text: str
    wait: bool


class Ask(SendingTool[AskArguments, AskPayload]):
    name = "ask"
    description = "Ask an agent something in a conversation, and wait for the answer."
    arguments = AskArguments
    payload = AskPayload

    async def prepare(self, log: Log, arguments: AskArguments, context: ToolExecutionContext) -> AskPayload:
        if arguments.wait:
            await check_wait(log, context.run, AgentLane(arguments.agent, arguments.conversation))
        return AskPayload(**arguments.model_dump(include={"agent", "conversation", "text", "wait"}))

    async def perform(self, log: Log, payload: AskPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        envelope = MessageEnvelope(
            id=mark.id,
            conversation_id=payload.conversation,
            sender=f"agent:{context.run.agent}",
            recipient=f"agent:{payload.agent}",
            type="message",
            content=payload.text,
        )
        append = await plan_envelope(log, envelope, SendOptions(hops=context.run.hops + 1))
        if not payload.wait:
            return append
        return await with_wait(log, context.run, AgentLane(payload.agent, payload.conversation), append)

    def target(self, payload: AskPayload) -> str:
        return f"agent:{payload.agent}"


def ask_definition() -> ToolDefinition:
    inner = definition_of(Ask())

    async def execute(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[Any]:
        result = await inner.execute(given, context)
        arguments = AskArguments.model_validate(dict(given))
        if not arguments.wait:
            return result
        lane = AgentLane(arguments.agent, arguments.conversation)
        answer = await wait_for_answer(context, lane, result.typed_result["envelope_id"], arguments.timeout_s)
        told = {"status": answer.status, "text": answer.text, "reason": answer.reason}
        return ToolExecutionResult(told, told)

    return replace(inner, execute=execute)
