"""Addressing of mail: check recipients, choose inboxes, and build the records. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

from magent2.bus.records import NewRecord, check_id, digest_of
from magent2.errors import AddressError, NameTaken
from magent2.mail.headers import AWAITED, RELAY_JOB
from magent2.models.address import Address, chat_topic, check_conversation_id, control_topic, relay_agent
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonScalar


def check_envelope(envelope: MessageEnvelope) -> Address:
    """Parse the recipient of an envelope and check it against the conversation."""
    recipient = Address.parse(envelope.recipient)
    check_recipient(recipient, envelope.conversation_id)
    return recipient


def check_recipient(recipient: Address, conversation: str) -> None:
    """Check that a message to this recipient can be part of the conversation."""
    check_conversation_id(conversation)
    if recipient.kind == "chat" and recipient.name != conversation:
        raise AddressError(f"recipient {str(recipient)!r} and conversation {conversation!r} differ; make them one")
    if recipient.kind == "agent" and recipient.name == conversation:
        raise name_taken_error(recipient.name)


def addressed_agent(
    recipient: Address, envelope: MessageEnvelope, active: str | None, default_agent: str | None
) -> str | None:
    """Return the agent whose inbox the envelope goes to, or `None` if no agent is to answer it.

    An agent's message to the conversation it is active in goes to no inbox: it would answer itself. Only messages of
    people fall back to the default agent, so that two agents with wrong addresses do not start a third one.
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


# Values of envelope fields that a sender may leave out or write down without changing the digest
ENVELOPE_DEFAULTS: Mapping[str, object] = {"type": "message", "content": None, "metadata": {}}


def mail_records(
    envelope: MessageEnvelope,
    agents: Sequence[str],
    headers: Mapping[str, JsonScalar],
    under_own_id: Collection[str] = (),
) -> tuple[NewRecord, ...]:
    """Build the records of an envelope: one per topic.

    A message goes to the conversation and to the agents' inboxes, a control message to the agents only. No other
    module builds records of `chat:*` and `control:*`. In the conversation the record has the envelope's id, in an inbox
    its `inbox_id`, except in the inboxes `under_own_id`.

    A stop for a message that may still wait also goes to the inbox of messages, where it waits behind that message.
    Control mail would be read, and gone, before the message is.
    """
    own = () if envelope.type == "control" else (chat_topic(envelope.conversation_id),)
    inboxes = [(control_topic if envelope.type == "control" else chat_topic)(agent) for agent in agents]
    if headers.get(AWAITED):
        inboxes += [chat_topic(agent) for agent in agents]
    topics = [*own, *inboxes]
    if not topics:
        return ()
    payload = envelope.model_dump(mode="json")
    digest = envelope_digest(envelope, payload)
    scoped = inbox_id(envelope.conversation_id, check_id(envelope.id))
    ids = [envelope.id if topic in own or topic in under_own_id else scoped for topic in topics]
    first = NewRecord(topics[0], payload, ids[0], headers, digest=digest)
    return (first, *(first.also_in(topic, name) for topic, name in zip(topics[1:], ids[1:], strict=True)))


def inbox_id(conversation: str, envelope_id: str) -> str:
    """Return the id of an envelope's record in an inbox.

    Conversations of many owners share an inbox, and senders choose the ids of their envelopes. So the id is scoped by
    the conversation, which has one owner for ever. No sender can choose an id that another conversation's mail has.
    """
    text = "\x1f".join((conversation, envelope_id))
    return "mail-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def envelope_digest(envelope: MessageEnvelope, payload: Mapping[str, object] | None = None) -> str:
    """Digest of the fields that the sender chose, so that a repeat with explicit defaults is still a repeat."""
    whole = envelope.model_dump(mode="json") if payload is None else payload
    fields = envelope.model_fields_set
    return digest_of(
        {
            name: whole[name]
            for name in fields
            if name not in ENVELOPE_DEFAULTS or whole[name] != ENVELOPE_DEFAULTS[name]
        }
    )


def relay_job(connector: str, lane: str, item: str, record_id: str | None = None) -> NewRecord:
    """Mail that makes a connector's relay send one item of its outbox.

    The item is named in a header, because senders of ordinary mail cannot set headers. `record_id` replaces the item as
    the record's id when the item is sent a second time.
    """
    payload = {"conversation_id": lane, "sender": "outbox"}
    return NewRecord(chat_topic(relay_agent(connector)), payload, record_id or item, {RELAY_JOB: item}, digest=item)
