"""Webhooks that principals have registered: where their events go, which events, and the secret that signs them.

A webhook is a topic `webhook:{id}` whose head describes it, so one list returns many. The same text is the name of its
outbox: to the relay a webhook is a connector whose messages are notifications. Deleting a webhook removes its topic,
and with it the secret.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from magent2.bus.log import Log
from magent2.bus.operations import Append, Delete, LastSeqIs, SetHead, Trim
from magent2.bus.records import NewRecord, TopicInfo
from magent2.bus.retention import trim_steps
from magent2.bus.retry import retry_on_conflict
from magent2.directory.connectors import Capabilities, ConnectorRegistration
from magent2.errors import InvalidInput, TopicDeleted, UnknownEntity, WebhooksFull
from magent2.models.address import WEBHOOK_PREFIX, is_name, outbox_topic, webhook_topic
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.webhook_config import WEBHOOK_SETTINGS, check_webhook
from magent2.models.webhook_events import WebhookEvent, check_events

WEBHOOKS_PER_OWNER_MAX = 10  # the webhooks of the whole deployment count as those of one owner
WEBHOOK_SECRET_MAX_CHARS = 256
CONFIGURED_PREFIX = "config."  # of the ids of webhooks in an agents file, which are not on the log
WEBHOOKS_PAGE = 1000

_CAPABILITIES = Capabilities(text=False, takes_key=True)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A registered webhook. `owner` is `None` for one of the whole deployment, which gets the events of all owners.

    `config` is that of the connector of this kind. It may contain the secret and is never shown.
    """

    id: str
    owner: str | None
    events: tuple[WebhookEvent, ...]
    config: JsonMapping = field(repr=False)
    created_ms: int = 0

    @property
    def connector(self) -> str:
        """The name of its outbox."""
        return webhook_topic(self.id)

    @property
    def url(self) -> str:
        return str(self.config["url"])

    @property
    def configured(self) -> bool:
        """Whether it is described in an agents file, so that it cannot be deleted on the log."""
        return self.id.startswith(CONFIGURED_PREFIX)

    @property
    def registration(self) -> ConnectorRegistration:
        """The webhook as the relay sends to it. A receiver of events has to know repeats by their key."""
        return ConnectorRegistration(self.connector, "webhook", _CAPABILITIES, {**self.config, "takes_key": True})


def _webhook(info: TopicInfo) -> Webhook | None:
    """The webhook that a head describes. `None` if there is none, or if a newer release described it differently."""
    head = info.head
    if info.deleted or not isinstance(head.get("url"), str) or not isinstance(head.get("events"), list):
        return None
    config = {name: head[name] for name in WEBHOOK_SETTINGS if name in head}
    events = tuple(str(name) for name in head["events"])
    name = info.topic.removeprefix(WEBHOOK_PREFIX)
    created_ms = int(head.get("created_ms", info.active_ms))  # a change of the head sets `active_ms`
    return Webhook(name, head.get("owner"), events, config, created_ms)  # type: ignore[arg-type]  # of any release


# --- reading


async def find_webhook(log: Log, webhook_id: str) -> Webhook:
    """Return a webhook. Raises `UnknownEntity` if it does not exist."""
    found = None
    if is_name(webhook_id):
        (info,) = await log.describe(webhook_topic(webhook_id))
        found = _webhook(info)
    if found is None:
        raise unknown_webhook(webhook_id)
    return found


def unknown_webhook(webhook_id: str) -> UnknownEntity:
    return UnknownEntity(f"there is no webhook {webhook_id[:80]!r}; list them with `magent2 webhooks ls`")


async def find_webhooks(log: Log, topics: Sequence[str]) -> dict[str, Webhook | None]:
    """Return the webhooks of these topics, `None` for one that does not exist."""
    return {info.topic: _webhook(info) for info in await log.describe(*topics)} if topics else {}


async def list_webhooks(log: Log, owner: str | None = None) -> list[Webhook]:
    """Return the webhooks of an owner, or all, oldest first."""
    found: list[Webhook] = []
    before: tuple[int, str] | None = None
    while True:
        page = await log.topics(WEBHOOK_PREFIX, owner, before, WEBHOOKS_PAGE)
        found += [webhook for info in page.topics if (webhook := _webhook(info)) is not None]
        before = page.next
        if before is None:
            return sorted(found, key=lambda webhook: (webhook.created_ms, webhook.id))


# --- changing


async def create_webhook(log: Log, owner: str | None, config: JsonObject, events: Sequence[str] = ()) -> Webhook:
    """Register a webhook for an owner, or with `None` for the deployment.

    Raises `SettingsError` or `InvalidInput` for a configuration that cannot be used, `WebhooksFull` at the limit.
    """
    _check_config(config)
    wanted = check_events(events)
    await _check_count(log, owner, WEBHOOKS_PER_OWNER_MAX - 1)
    webhook_id = f"wh-{uuid.uuid4().hex}"
    topic = webhook_topic(webhook_id)
    head = {**config, "events": list(wanted), **({} if owner is None else {"owner": owner})}
    created = NewRecord(topic, {"event": "created"}, id="created")
    await log.append(Append(records=(created,), conditions=(LastSeqIs(topic, 0),), heads=(SetHead(topic, head),)))
    try:  # others may have been registered since the first check; now each sees the others
        await _check_count(log, owner, WEBHOOKS_PER_OWNER_MAX)
    except WebhooksFull:
        await delete_webhook(log, webhook_id)
        raise
    return await find_webhook(log, webhook_id)


def _check_config(config: JsonMapping) -> None:
    check_webhook(config)
    if len(str(config.get("secret", ""))) > WEBHOOK_SECRET_MAX_CHARS:
        raise InvalidInput(f"the secret of a webhook has at most {WEBHOOK_SECRET_MAX_CHARS} characters; shorten it")


async def update_webhook(
    log: Log, webhook_id: str, *, url: str | None = None, secret: str | None = None, events: Sequence[str] = ()
) -> Webhook:
    """Change what is given, and return the webhook. Notifications that wait go to the new URL, with the new secret.

    Raises `UnknownEntity`, and for a configuration that cannot be used the errors of `create_webhook`. A secret that
    the workers have in their environment is changed there: `InvalidInput`.
    """
    given = {name: value for name, value in (("url", url), ("secret", secret)) if value is not None}

    async def attempt() -> None:
        webhook = await find_webhook(log, webhook_id)
        (info,) = await log.describe(webhook.connector)
        if secret is not None and "secret_env" in webhook.config:
            raise InvalidInput(
                f"the secret of the webhook is in {webhook.config['secret_env']} of the workers; change it there"
            )
        _check_config({**webhook.config, **given})
        wanted = {**given, **({"events": list(check_events(events))} if events else {})}
        if all(info.head.get(name) == value for name, value in wanted.items()):
            return
        # An id that both of two changes at the same time had would make the second a repeat, which writes nothing.
        changed = NewRecord(webhook.connector, {"event": "changed"}, id=f"changed-{uuid.uuid4().hex}")
        unchanged = LastSeqIs(webhook.connector, info.last)
        head = SetHead(webhook.connector, {**wanted, "created_ms": webhook.created_ms})
        await log.append(Append(records=(changed,), conditions=(unchanged,), heads=(head,)))

    try:
        await retry_on_conflict(attempt, f"webhook {webhook_id[:80]!r}")
    except TopicDeleted as error:
        raise unknown_webhook(webhook_id) from error
    return await find_webhook(log, webhook_id)


async def _check_count(log: Log, owner: str | None, allowed: int) -> None:
    count = sum(webhook.owner == owner for webhook in await list_webhooks(log, owner))
    if count > allowed:
        whose = "the deployment" if owner is None else repr(owner)
        raise WebhooksFull(f"{whose} has {WEBHOOKS_PER_OWNER_MAX} webhooks, which is the limit; delete one first")


async def delete_webhook(log: Log, webhook_id: str) -> None:
    """Delete a webhook with its secret and its deliveries. Notifications that wait are not sent.

    The outbox is emptied and not deleted: a run that ends at this moment may still write to it, and a deleted topic
    would refuse the whole append that ends the run. The relay removes what came late.
    """
    await log.run(Delete((webhook_topic(webhook_id),)))
    async for _ in trim_steps(log, Trim(outbox_topic(webhook_topic(webhook_id)), keep=0)):
        pass


async def delete_webhooks_of(log: Log, owner: str) -> list[str]:
    """Delete all webhooks of an owner, and return their ids."""
    found = await list_webhooks(log, owner)
    for webhook in found:
        await delete_webhook(log, webhook.id)
    return [webhook.id for webhook in found]
