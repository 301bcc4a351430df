"""Schemas of webhooks and of what was sent to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from magent2.models.api.base import ApiModel, StrictRequest, example
from magent2.models.json_types import JsonObject
from magent2.models.webhook_config import URL_MAX_CHARS
from magent2.models.webhook_events import WebhookEvent

WebhookScope: TypeAlias = Literal["own", "deployment"]

WEBHOOK_EXAMPLE: JsonObject = {
    "id": "wh-0a1b", "url": "https://example.com/hooks", "events": ["run.finished", "approval.requested"],
    "scope": "own", "owner": "user:ann", "created_at": "2026-09-21T14:00:00Z",
}  # fmt: skip


class WebhookRequest(StrictRequest):
    """A webhook to register. Without `secret` and `secret_env`, the gateway makes a secret."""

    model_config = example(url="https://example.com/hooks", events=["run.finished", "approval.requested"])

    url: Annotated[str, Field(min_length=1, max_length=URL_MAX_CHARS, description="with https, at a public address")]
    events: Annotated[
        list[WebhookEvent] | None, Field(min_length=1, max_length=32, description="that it is told of; all by default")
    ] = None
    secret: Annotated[
        str | None, Field(max_length=1000, description="signs the requests; 16 to 256 characters, kept on the log")
    ] = None
    secret_env: Annotated[
        str | None, Field(max_length=200, description="for admins: the variable of the workers with the secret")
    ] = None
    scope: Annotated[
        WebhookScope | None,
        Field(description="`own` conversations; or of the whole `deployment`, for admins and their default"),
    ] = None
    allow_private: Annotated[bool, Field(description="for admins: any address, also without TLS")] = False


class WebhookChange(StrictRequest):
    """What to change of a webhook; a field that is absent stays as it is."""

    model_config = example(events=["run.failed"])

    url: Annotated[
        str | None, Field(min_length=1, max_length=URL_MAX_CHARS, description="under the rules of the registration")
    ] = None
    events: Annotated[list[WebhookEvent] | None, Field(min_length=1, max_length=32)] = None
    secret: Annotated[str | None, Field(max_length=1000, description="a new secret; 16 to 256 characters")] = None
    rotate_secret: Annotated[bool, Field(description="the gateway makes a new secret, and this response shows it")] = (
        False
    )


class WebhookInfo(ApiModel):
    """A webhook. Its secret is only in the response that creates or rotates it, if the gateway made it."""

    model_config = example(**WEBHOOK_EXAMPLE, secret=None)

    id: str
    url: str
    events: list[str]
    scope: WebhookScope
    owner: str | None = Field(description="null for one of the deployment")
    created_at: datetime
    secret: str | None = Field(default=None, description="shown once; keep it")


class WebhookList(ApiModel):
    """Webhooks, oldest first."""

    model_config = example(webhooks=[{**WEBHOOK_EXAMPLE, "secret": None}])

    webhooks: list[WebhookInfo]


class WebhookDelivery(ApiModel):
    """A notification and what became of it. One that is `dead` or `unknown` can be sent again."""

    model_config = example(
        id="evt-0a1b", type="run.finished", conversation_id="s-1", state="sent", tries=0, reason=None,
        created_at="2026-09-21T14:00:00Z", changed_at="2026-09-21T14:00:01Z",
    )  # fmt: skip

    id: str = Field(description="the key that the receiver gets with every attempt")
    type: str
    conversation_id: str | None
    state: Literal["waiting", "begun", "sent", "dead", "unknown", "dropped"]
    tries: int = Field(description="attempts that failed")
    reason: str | None
    created_at: str
    changed_at: datetime


class WebhookDeliveryList(ApiModel):
    """The last deliveries of a webhook, oldest first."""

    model_config = example(deliveries=[])

    deliveries: list[WebhookDelivery]
