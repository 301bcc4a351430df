"""Schemas for administration: probes, workers, dead letters, the caller's identity, connectors and their outboxes."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.api.base import ApiModel, StrictRequest, example
from magent2.models.json_types import JsonObject


class HealthResponse(ApiModel):
    """The gateway process is running."""

    status: Literal["ok"] = "ok"


class ReadyResponse(ApiModel):
    """The gateway can reach its bus, which takes writes, and accepts requests."""

    status: Literal["ready"] = "ready"
    engine: str | None = Field(default=None, description="of the bus; only with the gateway's token")


class LaneCounts(ApiModel):
    """Number of an agent's lanes in each state."""

    ready: int = 0
    held: int = 0
    later: int = 0
    parked: int = 0


AGENT_EXAMPLE: JsonObject = {
    "name": "general", "alive": True, "workers": ["w-1"], "pending": 1,
    "lanes": {"ready": 1, "held": 0, "later": 0, "parked": 0},
}  # fmt: skip


class AgentInfo(ApiModel):
    """A registered agent, or one that a worker serves now.

    `lanes` counts the conversations with messages for it; `pending` counts those messages.
    """

    name: str
    alive: bool
    workers: list[str]
    lanes: LaneCounts
    pending: int


class AgentList(ApiModel):
    """All registered agents and all agents with a live worker."""

    model_config = example(agents=[AGENT_EXAMPLE])

    agents: list[AgentInfo]


class DeadLetterInfo(ApiModel):
    """A message that could not be processed."""

    model_config = example(
        agent="general", seq=1, conversation_id="s-1", reason="gave up after 3 attempts", attempts=3,
        buried_at="2026-09-21T14:13:20Z", envelope_id="msg-8c…", text="weather in Oslo",
    )  # fmt: skip

    agent: str
    seq: int
    conversation_id: str
    reason: str
    attempts: int
    buried_at: datetime
    envelope_id: str
    text: str | None


class DeadLetterPage(ApiModel):
    """Dead letters, oldest first."""

    model_config = example(letters=[], next=None)

    letters: list[DeadLetterInfo]
    next: int | None = Field(description="pass it as `after` to get the next page; null on the last page")


REASON_FILTER_MAX_CHARS = 200
DEAD_CURSOR_MAX_CHARS = NAME_MAX_CHARS + 64


class DeadLettersRequest(StrictRequest):
    """Retry or drop the dead letters that meet all of these conditions. `all` is needed only without a condition."""

    model_config = example(action="retry", agent="general", since="2026-09-21T14:00:00Z", reason="503", dry_run=True)

    action: Literal["retry", "drop"]
    agent: str | None = Field(None, min_length=1, max_length=NAME_MAX_CHARS, description="letters of this agent")
    since: AwareDatetime | None = Field(None, description="letters that were buried at this time or later")
    reason: str | None = Field(
        None, min_length=1, max_length=REASON_FILTER_MAX_CHARS, description="letters whose reason contains this text"
    )
    all: bool = Field(False, description="letters of every agent, time and reason")
    dry_run: bool = Field(False, description="only say which letters are meant; change nothing")
    after: str | None = Field(None, max_length=DEAD_CURSOR_MAX_CHARS, description="`next` of the batch before")

    @model_validator(mode="after")
    def _check_chosen(self) -> Self:
        if not (self.all or self.agent or self.since or self.reason):
            raise ValueError("set 'agent', 'since' or 'reason', or set 'all' to true to choose every dead letter")
        return self


class RefusedDeadLetter(ApiModel):
    """A dead letter that could not be retried. It stays in the list."""

    agent: str
    seq: int
    error: str


class DeadLettersResponse(ApiModel):
    """The dead letters that were retried or dropped by this request, which handles a limited number of them."""

    model_config = example(letters=[], refused=[], next=None)

    letters: list[DeadLetterInfo]
    refused: list[RefusedDeadLetter]
    next: str | None = Field(description="send the request again with it as `after`; null when all are done")


class PrincipalInfo(ApiModel):
    """The caller. `principal` owns the conversations that they start and signs the messages that they send."""

    model_config = example(principal="user:ann", scopes=["user:ann"])

    principal: str
    scopes: list[str] = Field(description="`admin`, the user that the credential is limited to, or both")


class ConnectorRequest(StrictRequest):
    """Create or replace a connector."""

    model_config = example(
        id="hook",
        kind="webhook",
        config={"url": "https://example.com/in", "secret": "at-least-16-characters"},  # pragma: allowlist secret
    )

    id: str = Field(min_length=1, max_length=80)
    kind: Literal["console", "webhook"]
    config: dict[str, str | bool] = Field(
        default_factory=dict, description="of a webhook: url, secret_env or secret, takes_key, …"
    )


class ConnectorInfo(ApiModel):
    """A connector and what it can deliver."""

    model_config = example(
        id="hook", kind="webhook", capabilities={"text": True, "files": True, "reply_to": True, "takes_key": False}
    )

    id: str
    kind: str
    capabilities: dict[str, bool]


class ConnectorList(ApiModel):
    """All connectors."""

    model_config = example(connectors=[{"id": "web", "kind": "web", "capabilities": {
        "text": True, "files": True, "reply_to": True, "takes_key": True}}])  # fmt: skip

    connectors: list[ConnectorInfo]


class OutboxItemInfo(ApiModel):
    """An outgoing message. One that is `dead` or `unknown` waits until an operator retries or drops it."""

    model_config = example(
        id="send-0a1b", connector="hook", target="ann", conversation_id="s-1", state="unknown", tries=1,
        reason="hook.example was lost before it had answered", receipt=None, at_ms=1790000000000,
    )  # fmt: skip

    id: str
    connector: str
    target: str
    conversation_id: str
    state: Literal["waiting", "begun", "sent", "dead", "unknown", "dropped"]
    tries: int
    reason: str | None
    receipt: str | None
    at_ms: int


class OutboxItemList(ApiModel):
    """Outgoing messages."""

    model_config = example(items=[])

    items: list[OutboxItemInfo]
