"""`chat_send`: send a message to a conversation or to an agent, over the bus.

`ChatSend` is the implementation. Python code calls it as `send_message`, agents of the SDK as `chat_send`, and the
registry gets it from `chat_send_definition`.

Where values come from, in order of precedence:
- conversation: the recipient itself (`chat:…`); else the explicit id, the run, `CHAT_TOOL_CONVERSATION_ID`;
- sender: the agent of the run, `AGENT_NAME`, `agent:unknown`;
- bus: that of the run, the injected one, the one that `connect()` opens, which is kept for the next call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field

from magent2.bus.interface import Bus, BusMessage, Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append
from magent2.bus.v1_adapter import is_engine
from magent2.errors import AddressError, InvalidInput, Refused, TopicDeleted
from magent2.fair_share import FairThreads
from magent2.mail.addressing import check_envelope, check_recipient, mail_records
from magent2.mail.delivery import SendOptions
from magent2.models.address import Address, chat_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonObject
from magent2.sessions.usage.budgets import NO_ROOT, CallRoot
from magent2.tools.definition import (
    ToolAnswer,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
)
from magent2.tools.interface import TOOL_THREADS_MAX, SendKind, SendMark, current_scope, run_in_tool_thread
from magent2.tools.sending import (
    Arguments,
    Payload,
    SendingTool,
    SendResult,
    definition_of,
    has_engine,
    plan_envelope,
    send_or_hold,
)

if TYPE_CHECKING:
    from agents import FunctionTool

    chat_send: FunctionTool

CHAT_PREFIX = "chat:"  # of the topics that hold messages; the event that shows a message is in another topic

# The context of a run: a mapping, or an object with the same names as attributes.
Context: TypeAlias = Mapping[str, object] | object


class ChatArguments(Arguments):
    recipient: str = Field(description='"chat:{conversation_id}" or "agent:{AgentName}".')
    content: str = Field(description="Non-empty message text.")
    conversation_id: str | None = Field(
        default=None, description="The conversation of a message to an agent. Defaults to this conversation."
    )
    steer: bool = Field(
        default=False, description="Send immediately, to an agent that is working: it reads this before its next step."
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
        return _resolve(arguments, context.run)

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
        options = SendOptions(principal=context.run.principal, hops=context.run.hops + 1, trace=mark.trace)
        return await plan_envelope(log, envelope, options, payload.steer)

    def target(self, payload: ChatPayload) -> str:
        return payload.recipient

    def kind(self, payload: ChatPayload) -> SendKind:
        """Whether a message may be sent does not depend on which agent of the conversation it is for."""
        kind = payload.recipient.partition(":")[0]
        return SendKind((kind, payload.conversation_id, payload.steer), payload.content)

    def answer(self, payload: ChatPayload, result: SendResult) -> ToolAnswer:
        # The plan of a held message may be that of a message to another agent, so its topics cannot be used.
        kind, _, name = payload.recipient.partition(":")
        to_agent = (chat_topic(payload.conversation_id), chat_topic(name))
        topics = to_agent if kind == "agent" else [topic for topic in result.topics if topic.startswith(CHAT_PREFIX)]
        return {"ok": True, "envelope_id": result.id, "published_to": list(topics)}

    async def respond(self, arguments: ChatArguments, context: ToolExecutionContext) -> ToolExecutionResult[ToolAnswer]:
        """In a block, a refusal is an exception. A model that calls the tool gets `{"ok": false, "error": …}`."""
        if context.python_execution:
            result = await super().respond(arguments, context)
            answer = {**result.typed_result, "held": result.deferred_payload is not None}
            return replace(result, tool_message=answer, typed_result=answer)
        try:
            if has_engine(context):
                return await super().respond(arguments, context)
            answer = _send_on_v1_bus(context.run.bus, _resolve(arguments, context.run))
        except (InvalidInput, Refused, TopicDeleted) as refusal:
            answer = {"ok": False, "error": str(refusal)}
        return ToolExecutionResult(answer, answer)

    def hold(self, raw: ToolArguments, context: ToolExecutionContext) -> ToolAnswer | None:
        answer = super().hold(raw, context) if has_engine(context) else None
        return None if answer is None else {**answer, "held": True}

    async def send(
        self, log: Log, arguments: ChatArguments, payload: ChatPayload, context: ToolExecutionContext
    ) -> ToolAnswer:
        """Send or hold a resolved message for `send_message`, which may be called in the code of another tool."""
        result = await send_or_hold(log, self.prepared(arguments, payload, context))
        return self.answer(payload, result)


def chat_send_definition() -> ToolDefinition:
    return definition_of(ChatSend())


@dataclass(frozen=True, slots=True)
class _Caller:
    """The facts of a caller of `send_message`. Outside a run a message has 0 hops, and `perform` adds one."""

    conversation_id: str
    agent: str
    bus: Engine
    run_id: str = ""
    hops: int = -1
    principal: str | None = None
    root: CallRoot = NO_ROOT


def send_message(
    recipient: str,
    content: str,
    *,
    conversation_id: str | None = None,
    context: Context | None = None,
    steer: bool = False,
) -> JsonObject:
    """Send `content`, trimmed, to `chat:{conversation_id}` or `agent:{Name}`; with `steer`, to runs under way there.

    In a tool call of a run, the message is held until the call ends.
    Returns `{"ok": True, "envelope_id": …, "published_to": [topics…]}`. Raises `ValueError` for a bad recipient, text
    or conversation, `Refused` if a run cannot be steered now, and `TopicDeleted` if the conversation was deleted.
    """
    arguments = ChatArguments(
        recipient=recipient or "", content=content or "", conversation_id=conversation_id, steer=steer
    )
    payload = _resolve(arguments, context)  # refused before a bus is opened
    scope = current_scope()
    bus = _get(context, "bus") if scope is None else scope.run.bus
    bus = get_bus() if bus is None else bus
    if not is_engine(bus):
        return _send_on_v1_bus(bus, payload)
    caller = _Caller(payload.conversation_id, _agent_of(context), bus)
    if scope is not None:
        caller = replace(caller, run_id=scope.run.run_id, hops=scope.run.hops, principal=scope.run.principal)
    return run_sync(caller.bus, ChatSend().send, arguments, payload, ToolExecutionContext(caller, scope))


def _send_on_v1_bus(bus: Bus, payload: ChatPayload) -> ToolAnswer:
    """A bus with only `publish` cannot tell a steer from other messages, and cannot hold any."""
    envelope = _build_envelope(payload.conversation_id, payload.sender, payload.recipient, payload.content)
    return {"ok": True, "envelope_id": envelope.id, "published_to": _publish(bus, envelope)}


def _publish(bus: Bus, envelope: MessageEnvelope) -> list[str]:
    """Publish an envelope, one record after the other; return its topics."""
    recipient = check_envelope(envelope)
    records = mail_records(envelope, (recipient.name,) if recipient.kind == "agent" else (), {})
    for record in records:
        bus.publish(record.topic, BusMessage(record.topic, record.payload, str(record.id)))
    return [record.topic for record in records]


def _resolve(arguments: ChatArguments, context: Context | None) -> ChatPayload:
    address = Address.parse(arguments.recipient)
    text = arguments.content.strip()
    if not text:
        raise InvalidInput("content must be non-empty")
    conversation = _resolve_conversation_id(str(address), context, arguments.conversation_id)
    check_recipient(address, conversation)
    return ChatPayload(
        conversation_id=conversation,
        sender=_resolve_sender(context),
        recipient=str(address),
        content=text,
        created_at=datetime.now(UTC),
        steer=arguments.steer,
    )


def _resolve_conversation_id(recipient: str, ctx: Context | None, explicit_conversation_id: str | None) -> str:
    address = Address.parse(recipient)
    if address.kind == "chat":
        return address.name
    conversation = (
        _text(explicit_conversation_id)
        or _text(_get(ctx, "conversation_id"))
        or _text(os.environ.get("CHAT_TOOL_CONVERSATION_ID"))
    )
    if not conversation:
        raise AddressError("conversation_id not available for agent recipient")
    return conversation


def _resolve_sender(ctx: Context | None = None) -> str:
    name = _agent_of(ctx) or _text(os.environ.get("AGENT_NAME"))
    return f"agent:{name}" if name else "agent:unknown"


def _agent_of(ctx: Context | None) -> str:
    """The name of the agent in a context, which may have the name or an agent of the SDK."""
    agent = _get(ctx, "agent")
    return _text(agent if isinstance(agent, str) else getattr(agent, "name", None))


def _build_envelope(conversation_id: str, sender: str, recipient: str, content: str) -> MessageEnvelope:
    return MessageEnvelope(
        conversation_id=conversation_id, sender=sender, recipient=recipient, type="message", content=content
    )


def _text(value: object) -> str:
    return str(value or "").strip()


def _get(ctx: Context | None, name: str) -> Any:
    return ctx.get(name) if isinstance(ctx, Mapping) else getattr(ctx, name, None)


class _BusSlot:
    """The bus of this module: injected, or opened when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._injected: Bus | None = None
        self._opened: Engine | None = None

    def inject(self, bus: Bus | None) -> None:
        with self._lock:
            opened, self._opened, self._injected = self._opened, None, bus
        if opened is not None:
            opened.close()

    def get(self) -> Bus:
        with self._lock:
            if self._injected is not None:
                return self._injected
            if self._opened is None:
                from magent2.bus.connect import connect

                self._opened = connect()
            return self._opened


_slot = _BusSlot()


def get_bus() -> Bus:
    """The bus for messages that are sent outside a run."""
    return _slot.get()


_get_bus = get_bus


def set_bus_for_testing(bus: Bus | None) -> None:
    """Use this bus from now on. `None` returns to the bus that the environment names, opened anew."""
    _slot.inject(bus)


def __getattr__(name: str) -> object:
    """Make `chat_send` when it is first imported, because it needs the SDK, which `send_message` does not."""
    if name == "chat_send":
        return _chat_send()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@lru_cache(maxsize=1)
def _chat_send() -> FunctionTool:
    from agents import function_tool
    from agents.tool_context import ToolContext

    threads = FairThreads(TOOL_THREADS_MAX)

    async def chat_send(
        tool_context: ToolContext[Any],
        recipient: str,
        content: str,
        conversation_id: str | None = None,
        steer: bool = False,
    ) -> ToolAnswer:
        """Send a chat message to a conversation or an agent.

        Args:
            recipient: "chat:{conversation_id}" or "agent:{AgentName}".
            content: Non-empty message text.
            conversation_id: The conversation of a message to an agent. Defaults to this conversation.
            steer: Send immediately, to an agent that is working: it reads this before its next step.

        Returns:
            {"ok": bool, "envelope_id": str, "published_to": list[str]}, or {"ok": false, "error": str} when refused.
        """
        send = partial(send_message, conversation_id=conversation_id, context=tool_context.context, steer=steer)
        try:
            return await run_in_tool_thread(threads, send, recipient, content)
        except (InvalidInput, Refused, TopicDeleted) as refusal:  # the model can correct the call if it reads why
            return {"ok": False, "error": str(refusal)}

    # The annotations of this module are text, and `ToolContext` is imported in this function only.
    chat_send.__annotations__["tool_context"] = ToolContext[Any]
    return function_tool(chat_send)
