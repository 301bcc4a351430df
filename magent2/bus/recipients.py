"""Whom mail is for: what can be addressed, and whose inbox it goes to. Pure."""

from __future__ import annotations

from magent2.errors import AddressError, NameTaken
from magent2.models.address import Address, check_name
from magent2.models.envelope import MessageEnvelope


def check_envelope(envelope: MessageEnvelope) -> Address:
    recipient = Address.parse(envelope.recipient)
    check_place(recipient, envelope.conversation_id)
    return recipient


def check_place(recipient: Address, conversation: str) -> None:
    """That mail to this recipient can be part of the conversation."""
    check_name(conversation, "conversation id")
    if recipient.kind == "chat" and recipient.name != conversation:
        raise AddressError(f"recipient {str(recipient)!r} and conversation {conversation!r} differ; make them one")
    if recipient.kind == "agent" and recipient.name == conversation:
        raise taken_by_agent(recipient.name)


def addressed_agent(
    recipient: Address, envelope: MessageEnvelope, active: str | None, default_agent: str | None
) -> str | None:
    """Whose inbox the mail goes to. An agent's message to its own conversation opens no lane of its own.

    Only a person's mail falls back to the default agent: agents that talk past each other must not wake a third.
    """
    if recipient.kind == "agent":
        return recipient.name
    agent = active or (None if envelope.sender.startswith("agent:") else default_agent)
    if envelope.type == "message":
        return None if envelope.sender == f"agent:{agent}" else agent
    if agent is None:
        raise AddressError(f"no agent is active in {recipient.name!r}; address the control message to 'agent:{{Name}}'")
    return agent


def taken_by_agent(name: str) -> NameTaken:
    return NameTaken(f"{name!r} is an agent; give the conversation another id")
