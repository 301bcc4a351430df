"""Send a message to a conversation or to an agent, over the bus.

Where things come from, the first that is there:
- conversation: the recipient itself (`chat:…`); else the explicit id, the run, `CHAT_TOOL_CONVERSATION_ID`;
- sender: the run's agent, `AGENT_NAME`, `agent:unknown`;
- bus: the run's, the injected one, the one that `connect()` opens (kept for the next call).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from magent2.bus.interface import Bus, BusMessage, Engine
from magent2.errors import AddressError, InvalidInput, Refused
from magent2.mail.addressing import check_envelope, mail_records
from magent2.models.address import Address
from magent2.models.envelope import MessageEnvelope
from magent2.tools.sending import send

if TYPE_CHECKING:
    from agents import FunctionTool

    chat_send: FunctionTool

# A run's context: a mapping, or an object with the same names as attributes.
Context: TypeAlias = Mapping[str, Any] | object


class _BusSlot:
    """The one bus of this module: injected, or opened when first needed."""

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
    """The bus for sends outside a run."""
    return _slot.get()


_get_bus = get_bus


def set_bus_for_testing(bus: Bus | None) -> None:
    """Use this bus from now on; `None` goes back to the one that the environment names, opened anew."""
    _slot.inject(bus)


def send_message(
    recipient: str,
    content: str,
    *,
    conversation_id: str | None = None,
    context: Context | None = None,
    steer: bool = False,
) -> dict[str, Any]:
    """Send `content`, trimmed, to `chat:{conversation_id}` or `agent:{Name}`; as a steer to runs under way there.

    Returns `{"ok": True, "envelope_id": …, "published_to": [topics…]}`. Raises `ValueError` for what cannot be sent.
    """
    said = message_of(recipient, content, conversation_id, context)
    envelope = _build_envelope(said.conversation_id, said.sender, said.recipient, said.content)
    bus = _get(context, "bus")
    envelope_id, topics = _deliver(get_bus() if bus is None else bus, envelope, steer)
    return {"ok": True, "envelope_id": envelope_id, "published_to": topics}


@dataclass(frozen=True, slots=True)
class Message:
    """Who says what to whom, and where."""

    conversation_id: str
    sender: str
    recipient: str
    content: str


def message_of(
    recipient: str, content: str, conversation_id: str | None = None, context: Context | None = None
) -> Message:
    """What such a call means."""
    address = Address.parse(recipient or "")
    text = (content or "").strip()
    if not text:
        raise InvalidInput("content must be non-empty")
    conversation = _resolve_conversation_id(str(address), context, conversation_id)
    return Message(conversation, _resolve_sender(context), str(address), text)


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


def _text(value: object) -> str:
    return str(value or "").strip()


def _resolve_sender(ctx: Context | None = None) -> str:
    agent = _get(ctx, "agent")
    name = agent if isinstance(agent, str) else getattr(agent, "name", None)
    name = _text(name) or _text(os.environ.get("AGENT_NAME"))
    return f"agent:{name}" if name else "agent:unknown"


def _build_envelope(conversation_id: str, sender: str, recipient: str, content: str) -> MessageEnvelope:
    return MessageEnvelope(
        conversation_id=conversation_id, sender=sender, recipient=recipient, type="message", content=content
    )


def _publish(bus: Bus, envelope: MessageEnvelope) -> list[str]:
    """Send the envelope; the topics that it is in."""
    return _deliver(bus, envelope)[1]


def _deliver(bus: Bus, envelope: MessageEnvelope, steer: bool = False) -> tuple[str, list[str]]:
    """One append on an engine, which in a run has its own say in the id; else one record after the other.

    A bus with v1's `publish` alone cannot tell a steer from other mail, so there it is mail.
    """
    if hasattr(bus, "call"):
        sent = send(cast(Engine, bus), envelope, steer=steer)
        return sent.id, list(sent.topics)
    recipient = check_envelope(envelope)
    records = mail_records(envelope, (recipient.name,) if recipient.kind == "agent" else (), {})
    for record in records:
        bus.publish(record.topic, BusMessage(record.topic, record.payload, envelope.id))
    return envelope.id, [record.topic for record in records]


def _get(ctx: Context | None, name: str) -> Any:
    return ctx.get(name) if isinstance(ctx, Mapping) else getattr(ctx, name, None)


def __getattr__(name: str) -> object:
    """`chat_send` is made when it is first asked for, because it takes the SDK to make it."""
    if name == "chat_send":
        return _chat_send()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@lru_cache(maxsize=1)
def _chat_send() -> FunctionTool:
    from agents import function_tool
    from agents.tool_context import ToolContext

    def chat_send(
        tool_context: ToolContext[Any],
        recipient: str,
        content: str,
        conversation_id: str | None = None,
        steer: bool = False,
    ) -> dict[str, Any]:
        """Send a chat message to a conversation or an agent.

        Args:
            recipient: "chat:{conversation_id}" or "agent:{AgentName}".
            content: Non-empty message text.
            conversation_id: The conversation that a message to an agent belongs to; this one when left out.
            steer: Whether it is for an agent at work, which is to see it before its next step.

        Returns:
            {"ok": bool, "envelope_id": str, "published_to": list[str]}, or {"ok": false, "error": str} when refused.
        """
        try:
            return send_message(
                recipient, content, conversation_id=conversation_id, context=tool_context.context, steer=steer
            )
        except (InvalidInput, Refused) as refusal:  # the model can do better, if it is told what was wrong
            return {"ok": False, "error": str(refusal)}

    # The annotations are text here, and name what only this function has imported.
    chat_send.__annotations__["tool_context"] = ToolContext[Any]
    return function_tool(chat_send)
