"""`web`: the session page. What is sent there is a `message` event on the session's stream: the append delivers it."""

from __future__ import annotations

from dataclasses import replace

from magent2.bus.records import NewRecord
from magent2.connectors.interface import Outgoing
from magent2.models.events import MessageEvent
from magent2.sessions.stream import stream_record


def shown(message: Outgoing, run_id: str) -> NewRecord:
    """The event, under the key of the message."""
    event = MessageEvent(
        id=message.key,
        conversation_id=message.conversation_id,
        message_id=message.key,
        agent=message.agent,
        run_id=run_id,
        reply_to=message.reply_to,
        text=message.text,
        attachments=[attachment.facts() for attachment in message.attachments],
    )
    blobs = tuple(dict.fromkeys(attachment.sha256 for attachment in message.attachments))
    return replace(stream_record(event), id=message.key, blobs=blobs)
