"""The records of mail in `chat:*` and `control:*`: built here, and nobody else builds any. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magent2.bus.marks import ERRAND
from magent2.bus.records import NewRecord, digest_of
from magent2.models.address import chat_topic, control_topic, relay_agent
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonScalar

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


def errand(connector: str, lane: str, item: str, record_id: str | None = None) -> NewRecord:
    """Mail for whoever sends what is in a connector's outbox. Which item it is about a header says: no sender sets one.

    `record_id` is for an item that was there before.
    """
    payload = {"conversation_id": lane, "sender": "outbox"}
    return NewRecord(chat_topic(relay_agent(connector)), payload, record_id or item, {ERRAND: item}, digest=item)
