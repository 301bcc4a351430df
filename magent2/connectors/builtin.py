"""The kinds of connectors that come with magent2: `web`, `console` and `webhook`.

`console` and `webhook` are registered by a person and served by the relay. `web` is the session page. It needs neither:
the append of a tool delivers the message, because readers of the session stream see it there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TextIO

from magent2.bus.records import NewRecord
from magent2.connectors.interface import Connector, DeliveryReceipt, OutgoingMessage
from magent2.directory.connectors import Capabilities, ConnectorRegistration
from magent2.errors import NotTaken, SettingsError
from magent2.models.events import MessageEvent
from magent2.models.webhook_config import check_webhook
from magent2.sessions.stream import stream_record
from magent2.terminal import clean_line

KINDS = ("console", "webhook")  # that can be registered
CONSOLE_CAPABILITIES = Capabilities(text=True, files=True, reply_to=True, takes_key=False)


def capabilities_of(kind: str, config: Mapping[str, object]) -> Capabilities:
    """Check the configuration of a connector, and return its capabilities. Raises `SettingsError`."""
    if kind == "console":
        if config:
            raise SettingsError("a console connector has no settings; leave out its configuration")
        return CONSOLE_CAPABILITIES
    if kind == "webhook":
        # Imported late: it loads an HTTP client, which few commands need.
        from magent2.connectors.webhook import webhook_capabilities

        check_webhook(config)
        return webhook_capabilities(config)
    raise SettingsError(f"unknown kind of connector {kind[:80]!r}; use one of {', '.join(KINDS)}")


def make_connector(registration: ConnectorRegistration) -> Connector:
    if registration.kind == "console":
        return ConsoleConnector()
    if registration.kind == "webhook":
        from magent2.connectors.webhook import WebhookConnector

        return WebhookConnector(registration.config)
    raise SettingsError(
        f"connector {registration.id!r} has the kind {registration.kind!r}, which this version does not know"
    )


class ConsoleConnector:
    """Prints messages as lines on the standard output of the relay's process.

    A terminal accepts no key: a message that is printed twice is read twice. `out` replaces the standard output.
    """

    capabilities = CONSOLE_CAPABILITIES

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        target = f" → {message.target}" if message.target else ""
        lines = [f"[{clean_line(message.agent + target)}] {clean_line(' '.join(message.text.split()))}"]
        lines += [f"  + {clean_line(file.name)} ({file.bytes} bytes)" for file in message.attachments]
        try:
            for line in lines:
                print(line, file=self._out or sys.stdout, flush=True)
        except (OSError, ValueError) as error:  # the output was closed
            raise NotTaken(f"cannot write to the console: {error}") from error
        return DeliveryReceipt()

    async def aclose(self) -> None:
        return None


def message_record(message: OutgoingMessage, run_id: str) -> NewRecord:
    """Return the `message` event that delivers a message to the session page. Its id is the key of the message."""
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
