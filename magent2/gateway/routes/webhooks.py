"""`/api/webhooks`: where the caller's events are sent, a test, and what became of the notifications."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.log import Log
from magent2.connectors.notifications import send_test
from magent2.connectors.outbox import OutboxItem, find_item, read_outbox, retry_item
from magent2.directory.webhooks import (
    Webhook,
    create_webhook,
    delete_webhook,
    find_webhook,
    list_webhooks,
    unknown_webhook,
    update_webhook,
)
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, BODY_ERRORS, caller, json_body, parse_body
from magent2.gateway.services import Services, services_of
from magent2.models.address import NAME_MAX_CHARS, check_name
from magent2.models.api.webhooks import (
    WebhookChange,
    WebhookDelivery,
    WebhookDeliveryList,
    WebhookInfo,
    WebhookList,
    WebhookRequest,
)
from magent2.models.json_types import JsonObject
from magent2.models.principal import Principal

WEBHOOK_SECRET_BYTES = 32
DELIVERIES_MAX = 100  # of one webhook, that a list shows

WebhookId = Annotated[str, Path(min_length=1, max_length=80)]
DeliveryId = Annotated[str, Path(min_length=1, max_length=256)]
WEBHOOK_ERRORS = (*ACCESS_ERRORS, 404, 422, 501)


router = APIRouter(prefix=f"{API}/webhooks", tags=["webhooks"])


@router.get("", operation_id="list_webhooks", responses=problems(*ACCESS_ERRORS, 422, 501))
async def list_all(
    request: Request,
    owner: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="for admins: only of this owner")] = None,
) -> WebhookList:
    """List the caller's webhooks, for admins all of them. Those of an agents file are not listed."""
    services = services_of(request)
    principal = caller(request)
    if owner is not None and not principal.owns(check_name(owner, "owner")):
        return WebhookList(webhooks=[])
    found = await list_webhooks(Log(services.bus), owner if principal.admin else principal.name)
    return WebhookList(webhooks=[_info(webhook) for webhook in found])


@router.post(
    "",
    operation_id="create_webhook",
    status_code=201,
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 409, 501, 507),
    openapi_extra=json_body(WebhookRequest),
)
async def create(request: Request) -> WebhookInfo:
    """Register a webhook. It is told of events from a moment after this response on."""
    services = services_of(request)
    body = await parse_body(request, services, WebhookRequest)
    principal = caller(request)
    _check_rights(body, principal)
    made = secrets.token_hex(WEBHOOK_SECRET_BYTES) if body.secret is None and body.secret_env is None else None
    # Conversations that an administrator starts have no owner, so without a scope theirs gets all of them.
    scope = body.scope or ("deployment" if principal.admin else "own")
    owner = None if scope == "deployment" else principal.name
    webhook = await create_webhook(Log(services.bus), owner, _config(body, made), body.events or ())
    add_audit_ids(request.scope, webhook=webhook.id, owner=owner)
    return _info(webhook, made)


@router.get("/{webhook:id}", operation_id="get_webhook", responses=problems(*WEBHOOK_ERRORS))
async def show(webhook: WebhookId, request: Request) -> WebhookInfo:
    """Describe a webhook, without its secret."""
    services = services_of(request)
    return _info(await _owned(services, webhook, caller(request)))


@router.patch(
    "/{webhook:id}",
    operation_id="update_webhook",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 501, 507),
    openapi_extra=json_body(WebhookChange),
)
async def update(webhook: WebhookId, request: Request) -> WebhookInfo:
    """Change the URL, the events or the secret of a webhook. What is not given stays, also the secret."""
    services = services_of(request)
    body = await parse_body(request, services, WebhookChange)
    principal = caller(request)
    found = await _owned(services, webhook, principal)
    add_audit_ids(request.scope, webhook=found.id)
    _check_change(body, found, principal)
    made = secrets.token_hex(WEBHOOK_SECRET_BYTES) if body.rotate_secret else None
    changed = await update_webhook(
        Log(services.bus), found.id, url=body.url, secret=made or body.secret, events=body.events or ()
    )
    return _info(changed, made)


@router.delete(
    "/{webhook:id}", operation_id="delete_webhook", status_code=204, responses=problems(*WEBHOOK_ERRORS, 507)
)
async def delete(webhook: WebhookId, request: Request) -> Response:
    """Delete a webhook with its secret. Notifications that wait are not sent."""
    services = services_of(request)
    found = await _owned(services, webhook, caller(request))
    add_audit_ids(request.scope, webhook=found.id)
    await delete_webhook(Log(services.bus), found.id)
    return Response(status_code=204)


@router.post(
    "/{webhook:id}/test", operation_id="test_webhook", status_code=202, responses=problems(*WEBHOOK_ERRORS, 507)
)
async def test(webhook: WebhookId, request: Request) -> WebhookDelivery:
    """Send a notification of the type `webhook.test`, through a worker, as all others are sent."""
    services = services_of(request)
    found = await _owned(services, webhook, caller(request))
    delivery_id = await send_test(Log(services.bus), found)
    return _delivery(await find_item(Log(services.bus), found.connector, delivery_id))


@router.get("/{webhook:id}/deliveries", operation_id="list_webhook_deliveries", responses=problems(*WEBHOOK_ERRORS))
async def deliveries(
    webhook: WebhookId,
    request: Request,
    state: Annotated[str | None, Query(max_length=20, description="only those in this state")] = None,
) -> WebhookDeliveryList:
    """List the last 100 notifications of a webhook and what became of them, oldest first."""
    services = services_of(request)
    found = await _owned(services, webhook, caller(request))
    items = await read_outbox(Log(services.bus), found.connector)
    chosen = [_delivery(item) for item in items if state in (None, item.state)]
    return WebhookDeliveryList(deliveries=chosen[-DELIVERIES_MAX:])


@router.post(
    "/{webhook:id}/deliveries/{delivery:id}/retry",
    operation_id="retry_webhook_delivery",
    responses=problems(*WEBHOOK_ERRORS, 409, 507),
)
async def retry(webhook: WebhookId, delivery: DeliveryId, request: Request) -> WebhookDelivery:
    """Send a notification again that is `dead` or `unknown`, under the same id."""
    services = services_of(request)
    found = await _owned(services, webhook, caller(request))
    return _delivery(await retry_item(Log(services.bus), found.connector, delivery))


def _check_change(body: WebhookChange, webhook: Webhook, principal: Principal) -> None:
    if body.url is not None and webhook.config.get("allow_private") and not principal.admin:
        raise Problem(403, "admin_only", "this webhook may call private addresses; only an administrator moves it")
    if body.secret is not None and body.rotate_secret:
        raise Problem(422, "two_secrets", "give 'secret', or 'rotate_secret' for one that the gateway makes")


def _check_rights(body: WebhookRequest, principal: Principal) -> None:
    """Refuse what only an administrator may ask for.

    A private address would reach into the network of the workers, and a variable of theirs signs what others trust.
    """
    reserved = {
        "allow_private": body.allow_private,
        "secret_env": body.secret_env is not None,
        "scope": body.scope == "deployment",
    }
    for name, used in reserved.items():
        if used and not principal.admin:
            raise Problem(403, "admin_only", f"{name!r} is for administrators; leave it out, or use an admin's key")


def _config(body: WebhookRequest, made: str | None) -> JsonObject:
    given = {"url": body.url, "secret": made or body.secret, "secret_env": body.secret_env}
    private = {"allow_private": True} if body.allow_private else {}
    return {name: value for name, value in given.items() if value is not None} | private


async def _owned(services: Services, webhook_id: str, principal: Principal) -> Webhook:
    """Return the webhook. One of another owner is reported as unknown."""
    webhook = await find_webhook(Log(services.bus), webhook_id)
    if not principal.owns(webhook.owner):
        raise unknown_webhook(webhook_id)
    return webhook


def _info(webhook: Webhook, secret: str | None = None) -> WebhookInfo:
    return WebhookInfo(
        id=webhook.id,
        url=webhook.url,
        events=list(webhook.events),
        scope="deployment" if webhook.owner is None else "own",
        owner=webhook.owner,
        created_at=datetime.fromtimestamp(webhook.created_ms / 1000, UTC),
        secret=secret,
    )


def _delivery(item: OutboxItem) -> WebhookDelivery:
    notification = item.message.notification
    return WebhookDelivery(
        id=item.id,
        type="" if notification is None else notification["type"],
        conversation_id=item.message.conversation_id or None,
        state=item.state,
        tries=item.tries,
        reason=item.reason,
        created_at=item.message.created_at,
        changed_at=datetime.fromtimestamp(item.at_ms / 1000, UTC),
    )
