"""`chat_send` as a tool that sends: what its caller gives, what is kept until it leaves, and how it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.errors import InvalidInput, Refused, TopicDeleted
from magent2.mail.addressing import check_recipient
from magent2.mail.delivery import SendOptions
from magent2.models.address import Address, chat_topic
from magent2.models.envelope import MessageEnvelope
from magent2.tools.chat.function_tools import message_of, send_message
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult
from magent2.tools.interface import SendKind, SendMark
from magent2.tools.sending import SendResult, plan_envelope
from magent2.tools.sending_tool import Arguments, Payload, SendingTool, definition_of, has_log


class ChatArguments(Arguments):
    recipient: str = Field(description='"chat:{conversation_id}" or "agent:{AgentName}".')
    content: str = Field(description="Non-empty message text.")
    conversation_id: str | None = Field(
        default=None, description="The conversation that a message to an agent belongs to; this one when left out."
    )
    steer: bool = Field(
        default=False, description="Whether it is for an agent at work, which is to see it before its next step."
    )

    @property
    def urgent(self) -> bool:
        return self.now or self.steer


class ChatPayload(Payload):
    conversation_id: str
    sender: str
    recipient: str
    content: str
    created_at: datetime
    steer: bool = False


class ChatSend(SendingTool[ChatArguments, ChatPayload]):
    name = "chat_send"
    description = "Send a chat message to a conversation or an agent."
    arguments = ChatArguments
    payload = ChatPayload

    async def prepare(self, log: Log, arguments: ChatArguments, context: ToolExecutionContext) -> ChatPayload:
        said = message_of(arguments.recipient, arguments.content, arguments.conversation_id, context.run)
        check_recipient(Address.parse(said.recipient), said.conversation_id)
        return ChatPayload(
            conversation_id=said.conversation_id,
            sender=said.sender,
            recipient=said.recipient,
            content=said.content,
            created_at=datetime.now(UTC),
            steer=arguments.steer,
        )

    async def perform(self, log: Log, payload: ChatPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        envelope = MessageEnvelope(
            id=mark.id,
            conversation_id=payload.conversation_id,
            sender=payload.sender,
            recipient=payload.recipient,
            type="message",
            content=payload.content,
            created_at=payload.created_at,
        )
        run = context.run
        facts = SendOptions(principal=run.principal, hops=run.hops + 1, trace=mark.trace)
        return await plan_envelope(log, envelope, facts, payload.steer)

    def target(self, payload: ChatPayload) -> str:
        return payload.recipient

    def kind(self, payload: ChatPayload) -> SendKind:
        """Which agent is addressed makes no difference to whether it may be."""
        kind = payload.recipient.partition(":")[0]
        return SendKind((kind, payload.conversation_id, payload.steer), payload.content)

    def answer(self, payload: ChatPayload, sent: SendResult) -> dict[str, Any]:
        kind, _, name = payload.recipient.partition(":")
        to_agent = (chat_topic(payload.conversation_id), chat_topic(name))
        topics = to_agent if kind == "agent" else sent.topics
        return {"ok": True, "envelope_id": sent.id, "published_to": list(topics)}


def _told(result: ToolExecutionResult[Any]) -> ToolExecutionResult[Any]:
    """A block is told whether the message waits for its end."""
    answer = {**result.typed_result, "held": result.deferred_payload is not None}
    return replace(result, tool_message=answer, typed_result=answer)


def chat_send_definition() -> ToolDefinition:
    """A plain call is told what was wrong, `{"ok": false, "error": …}`; in a block a refusal is an exception."""
    inner = definition_of(ChatSend())

    async def execute(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[Any]:
        if context.python_execution:
            return _told(await inner.execute(given, context))
        try:
            if has_log(context):
                return await inner.execute(given, context)
            asked = {name: value for name, value in given.items() if name != "now"}
            answer = send_message(**asked, context=context.run)
        except (InvalidInput, Refused, TopicDeleted) as refusal:
            answer = {"ok": False, "error": str(refusal)}
        return ToolExecutionResult(answer, answer)

    def hold(given: Mapping[str, Any], context: ToolExecutionContext) -> dict[str, Any] | None:
        if inner.hold is None or not has_log(context):
            return None
        answer = inner.hold(given, context)
        return None if answer is None else {**answer, "held": True}

    return replace(inner, execute=execute, hold=hold)
