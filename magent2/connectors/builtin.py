"""`web`: the session page. What is sent there is a `message` event on the session's stream: the append delivers it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TextIO

from magent2.bus.records import NewRecord
from magent2.connectors.interface import Connector, DeliveryReceipt, OutgoingMessage
from magent2.directory.connectors import Capabilities, ConnectorRegistration
from magent2.errors import NotTaken, SettingsError
from magent2.models.events import MessageEvent
from magent2.sessions.stream import stream_record


def message_record(message: OutgoingMessage, run_id: str) -> NewRecord:
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


# --- `console`: messages as lines on the standard output of the process that relays them. It knows nothing again.

CONSOLE_CAPABILITIES = Capabilities(text=True, files=True, reply_to=True, takes_key=False)


class ConsoleConnector:
    """`out` is for tests; else it is whatever the standard output is when something is said."""

    capabilities = CONSOLE_CAPABILITIES

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        try:
            for line in self._lines(message):
                print(line, file=self._out or sys.stdout, flush=True)
        except (OSError, ValueError) as error:  # nobody reads it any more
            raise NotTaken(f"the console cannot be written to: {error}") from error
        return DeliveryReceipt()

    def _lines(self, message: OutgoingMessage) -> list[str]:
        to = f" → {message.target}" if message.target else ""
        text = " ".join(message.text.split())
        lines = [f"[{printable(message.agent)}{printable(to)}] {printable(text)}"]
        lines += [f"  + {printable(file.name)} ({file.bytes} bytes)" for file in message.attachments]
        return lines

    async def aclose(self) -> None:
        return None


def printable(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(char if char.isprintable() else "�" for char in text)


# --- The kinds of connectors that can be set up, what each needs, and how one is made.

KINDS = ("console", "webhook")


def capabilities_of(kind: str, config: Mapping[str, Any]) -> Capabilities:
    """What a connector that is set up like this can do; `SettingsError` says what is wrong with the configuration."""
    if kind == "console":
        if config:
            raise SettingsError("a console needs no configuration; leave it out")
        return CONSOLE_CAPABILITIES
    if kind == "webhook":
        from magent2.connectors.webhook import check_webhook

        check_webhook(config)
        return Capabilities(text=True, files=True, reply_to=True, takes_key=config.get("takes_key") is True)
    raise SettingsError(f"{kind[:80]!r} is no kind of connector; take one of {', '.join(KINDS)}")


def make_connector(registration: ConnectorRegistration) -> Connector:
    if registration.kind == "console":
        return ConsoleConnector()
    if registration.kind == "webhook":
        from magent2.connectors.webhook import WebhookConnector

        return WebhookConnector(registration.config)
    raise SettingsError(f"connector {registration.id!r} is of the kind {registration.kind!r}, which is not known here")
