"""The kinds of connectors that can be set up, what each needs, and how one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magent2.connectors import console
from magent2.connectors.console import ConsoleConnector
from magent2.connectors.interface import Connector
from magent2.directory.connectors import Capabilities, Registration
from magent2.errors import SettingsError

KINDS = ("console", "webhook")


def capabilities_of(kind: str, config: Mapping[str, Any]) -> Capabilities:
    """What a connector that is set up like this can do; `SettingsError` says what is wrong with the configuration."""
    if kind == "console":
        if config:
            raise SettingsError("a console needs no configuration; leave it out")
        return console.CAPABILITIES
    if kind == "webhook":
        from magent2.connectors.webhook import check_webhook

        check_webhook(config)
        return Capabilities(text=True, files=True, reply_to=True, takes_key=config.get("takes_key") is True)
    raise SettingsError(f"{kind[:80]!r} is no kind of connector; take one of {', '.join(KINDS)}")


def make_connector(registration: Registration) -> Connector:
    if registration.kind == "console":
        return ConsoleConnector()
    if registration.kind == "webhook":
        from magent2.connectors.webhook import WebhookConnector

        return WebhookConnector(registration.config)
    raise SettingsError(f"connector {registration.id!r} is of the kind {registration.kind!r}, which is not known here")
