"""Webhooks of a deployment: `[webhook.NAME]` of an agents file, or `MAGENT2_WEBHOOK_URL` and its like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from magent2.errors import InvalidInput, SettingsError
from magent2.models.json_types import JsonObject
from magent2.models.webhook_config import SECRET_ENV_PREFIX, check_webhook
from magent2.models.webhook_events import WEBHOOK_EVENTS, WebhookEvent, check_events
from magent2.roster.faults import suggestion
from magent2.settings import WEBHOOK_VARIABLES

ENVIRONMENT = "environment"  # the name of the webhook that the environment describes
ENVIRONMENT_SECRET = f"{SECRET_ENV_PREFIX}WEBHOOK"  # the variable with its secret
VARIABLE_NAMES = ("url", "events", "allow_private")
TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """`[webhook.NAME]`: a receiver of the events of all conversations. The URL is not part of the repr."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    # In the file the name is the key of the table; the parser passes it under this alias.
    name: Annotated[str, Field(validation_alias="webhook.NAME")]
    url: str = field(default="", repr=False)
    secret_env: str = field(default="", repr=False)  # a secret may be here by mistake
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    allow_private: bool = False

    @property
    def config(self) -> JsonObject:
        """The configuration of its connector."""
        private = {"allow_private": True} if self.allow_private else {}
        return {"url": self.url, "secret_env": self.secret_env, **private}


def webhook_fault(webhook: WebhookSpec) -> str | None:
    """Say what is wrong with a webhook of an agents file, if anything is."""
    for name in ("url", "secret_env", "events"):
        if not getattr(webhook, name):
            return f"{name} is missing or empty; give it a value"
    try:
        check_webhook(webhook.config)
    except SettingsError as error:
        return str(error)
    return None


def parse_webhook_variables(texts: Mapping[str, str]) -> dict[str, WebhookSpec]:
    """Parse the webhook of the environment, given by name as `Settings.webhook` has it; none without a URL.

    Raises `SettingsError` that names the variable that cannot be used.
    """
    if not texts:
        return {}
    for name in texts:
        if name not in VARIABLE_NAMES:
            raise SettingsError(f"{_variable(name)} is not known; {suggestion(name, VARIABLE_NAMES)}")
    if "url" not in texts:
        raise SettingsError(f"{_variable('url')} is missing; set it, or unset the other {WEBHOOK_VARIABLES}*")
    private = texts.get("allow_private", "false").lower()
    if private not in (*TRUE, *FALSE):
        raise SettingsError(f"{_variable('allow_private')} must be true or false, not {private[:40]!r}")
    try:
        events = check_events(texts.get("events", "").replace(",", " ").split())
    except InvalidInput as error:
        raise SettingsError(f"{_variable('events')}: {error}") from None
    webhook = WebhookSpec(ENVIRONMENT, texts["url"], ENVIRONMENT_SECRET, events, private in TRUE)
    if (fault := webhook_fault(webhook)) is not None:
        raise SettingsError(f"{_variable('url')}: {fault}")
    return {ENVIRONMENT: webhook}


def _variable(name: str) -> str:
    return f"{WEBHOOK_VARIABLES}{name.upper()}"
