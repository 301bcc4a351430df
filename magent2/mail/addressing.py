"""Whom mail is for: what can be addressed, and whose inbox it goes to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magent2.bus.records import NewRecord, digest_of
from magent2.errors import AddressError, NameTaken
from magent2.mail.headers import RELAY_JOB
from magent2.models.address import Address, chat_topic, check_name, control_topic, relay_agent
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonScalar


def check_envelope(envelope: MessageEnvelope) -> Address:
    recipient = Address.parse(envelope.recipient)
    check_recipient(recipient, envelope.conversation_id)
    return recipient


def check_recipient(recipient: Address, conversation: str) -> None:
    """That mail to this recipient can be part of the conversation."""
    check_name(conversation, "conversation id")
    if recipient.kind == "chat" and recipient.name != conversation:
        raise AddressError(f"recipient {str(recipient)!r} and conversation {conversation!r} differ; make them one")
    if recipient.kind == "agent" and recipient.name == conversation:
        raise name_taken_error(recipient.name)


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


def name_taken_error(name: str) -> NameTaken:
    return NameTaken(f"{name!r} is an agent; give the conversation another id")


# --- The records of mail in `chat:*` and `control:*`: built here, and nobody else builds any. Pure.

DEFAULTS: Mapping[str, Any] = {"type": "message", "content": None, "metadata": {}}  # of an envelope


def mail_records(
    envelope: MessageEnvelope, agents: Sequence[str], headers: Mapping[str, JsonScalar]
) -> tuple[NewRecord, ...]:
    """One record per topic, each under the envelope's id. Control goes to the agents alone."""
    if envelope.type == "control":
        topics = [control_topic(agent) for agent in agents]
    else:
        topics = [chat_topic(envelope.conversation_id), *map(chat_topic, agents)]
    if not topics:
        return ()
    payload = envelope.model_dump(mode="json")
    digest = envelope_digest(envelope, payload)
    first = NewRecord(topics[0], payload, envelope.id, headers, digest=digest)
    return (first, *(first.also_in(topic) for topic in topics[1:]))


def envelope_digest(envelope: MessageEnvelope, payload: Mapping[str, Any] | None = None) -> str:
    """What the sender chose: never a default, whether it was left out or written down."""
    whole = envelope.model_dump(mode="json") if payload is None else payload
    fields = envelope.model_fields_set
    return digest_of({name: whole[name] for name in fields if name not in DEFAULTS or whole[name] != DEFAULTS[name]})


def relay_job(connector: str, lane: str, item: str, record_id: str | None = None) -> NewRecord:
    """Mail for whoever sends what is in a connector's outbox. Which item it is about a header says: no sender sets one.

    `record_id` is for an item that was there before.
    """
    payload = {"conversation_id": lane, "sender": "outbox"}
    return NewRecord(chat_topic(relay_agent(connector)), payload, record_id or item, {RELAY_JOB: item}, digest=item)
