"""The events that webhooks are told of, and the notification that a receiver gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, TypedDict, get_args

from magent2.errors import InvalidInput

WebhookEvent: TypeAlias = Literal["run.finished", "run.failed", "run.stopped", "approval.requested", "budget.reached"]
WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)
TEST_EVENT = "webhook.test"  # that a person asks for; every webhook gets it


class EventFields(TypedDict, total=False):
    """The field `data` of a notification: ids, a status and times. No text of a message, tool or error."""

    conversation_id: str
    run_id: str
    agent: str
    envelope_id: str  # of the message that the run answers
    owner: str | None  # of the conversation
    status: str
    tool_call_ids: list[str]  # approval.requested: the calls that wait
    expires_at: str  # approval.requested
    budgets: list[str]  # budget.reached: the kinds of budgets that are used up, such as `run` and `user_day`
    resumes_at: str | None  # budget.reached: when the run goes on by itself


class Notification(TypedDict):
    """What a receiver gets about one event, without the id, which is the key of the request."""

    type: str
    created_at: str
    webhook_id: str
    data: EventFields


def check_events(names: Iterable[str]) -> tuple[WebhookEvent, ...]:
    """Return the events that a webhook is to be told of, each once. Raises `InvalidInput`; all events for no names."""
    wanted = list(dict.fromkeys(names))
    if unknown := [name for name in wanted if name not in WEBHOOK_EVENTS]:
        raise InvalidInput(f"there is no event {unknown[0][:60]!r}; known: {', '.join(WEBHOOK_EVENTS)}")
    return tuple(name for name in WEBHOOK_EVENTS if not wanted or name in wanted)
