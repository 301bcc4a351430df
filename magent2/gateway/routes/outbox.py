"""`/api/connectors`, `/api/outbox`: where messages go besides the session page, and what became of them. For admins."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from magent2.bus.log import Log
from magent2.connectors.builtin import capabilities_of
from magent2.connectors.outbox import OutboxItem, drop_item, read_outbox, retry_item
from magent2.directory.connectors import (
    ConnectorRegistration,
    list_connector_ids,
    list_connectors,
    register_connector,
    unregister_connector,
)
from magent2.gateway.openapi import problems
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, BODY_ERRORS, json_body, parse_body
from magent2.gateway.routes.people import ADMINS, Name
from magent2.gateway.services import Services
from magent2.models.api.administration import (
    ConnectorInfo,
    ConnectorList,
    ConnectorRequest,
    OutboxItemInfo,
    OutboxItemList,
)

ITEMS_MAX = 1000

ItemId = Annotated[str, Path(min_length=1, max_length=256)]


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["connectors"], dependencies=ADMINS)
    _connectors(routes, services)
    _outboxes(routes, services)
    return routes


def _connectors(routes: APIRouter, services: Services) -> None:
    @routes.get("/connectors", responses=problems(*ACCESS_ERRORS))
    async def connectors() -> ConnectorList:
        """Connectors that are set up. Their configuration, which holds a secret, is not shown."""
        found = await list_connectors(Log(services.bus))
        return ConnectorList(connectors=[connector_info(known) for known in found])

    @routes.post(
        "/connectors",
        responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 409, 507),
        openapi_extra=json_body(ConnectorRequest),
    )
    async def put_connector(request: Request) -> ConnectorInfo:
        """Set a connector up."""
        asked = await parse_body(request, services, ConnectorRequest)
        capabilities = capabilities_of(asked.kind, asked.config)
        return connector_info(
            await register_connector(Log(services.bus), asked.id, asked.kind, capabilities, asked.config)
        )

    @routes.delete("/connectors/{connector}", responses=problems(*ACCESS_ERRORS, 404, 422, 507))
    async def drop_connector(connector: Name) -> ConnectorInfo:
        """Take a connector away; what waits in its outbox is not sent."""
        return connector_info(await unregister_connector(Log(services.bus), connector))


def _outboxes(routes: APIRouter, services: Services) -> None:
    @routes.get("/outbox", responses=problems(*ACCESS_ERRORS, 422))
    async def outbox(
        connector: Annotated[str | None, Query(max_length=80, description="of this one; else of all")] = None,
        state: Annotated[str | None, Query(max_length=20, description="only what stands like this")] = None,
    ) -> OutboxItemList:
        """Messages to places outside and what became of them, the last 1,000, oldest first."""
        names = await list_connector_ids(Log(services.bus)) if connector is None else [connector]
        items = [item for name in names for item in await read_outbox(Log(services.bus), name)]
        chosen = [item for item in items if state in (None, item.state)]
        return OutboxItemList(items=[outbox_item_info(item) for item in chosen[-ITEMS_MAX:]])

    @routes.post("/outbox/{connector}/{item}/retry", responses=problems(*ACCESS_ERRORS, 404, 409, 422, 507))
    async def retry(connector: Name, item: ItemId) -> OutboxItemInfo:
        """Send a message again that is dead, or whose outcome nobody knows."""
        return outbox_item_info(await retry_item(Log(services.bus), connector, item))

    @routes.delete("/outbox/{connector}/{item}", responses=problems(*ACCESS_ERRORS, 404, 409, 422, 507))
    async def drop(connector: Name, item: ItemId) -> OutboxItemInfo:
        """Give such a message up for good."""
        return outbox_item_info(await drop_item(Log(services.bus), connector, item))


def connector_info(known: ConnectorRegistration) -> ConnectorInfo:
    return ConnectorInfo(id=known.id, kind=known.kind, capabilities=asdict(known.capabilities))


def outbox_item_info(item: OutboxItem) -> OutboxItemInfo:
    return OutboxItemInfo(
        id=item.id,
        connector=item.message.connector,
        target=item.message.target,
        conversation_id=item.message.conversation_id,
        state=item.state,
        tries=item.tries,
        reason=item.reason,
        receipt=item.receipt,
        at_ms=item.at_ms,
    )
