"""`/api/channels`: who is in them, and what was said there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from magent2.bus.log import Log
from magent2.directory.channels import (
    HISTORY_PAGE,
    Channel,
    create_channel,
    find_channel,
    join_channel,
    leave_channel,
    list_channels,
    new_member,
    read_channel,
    remove_channel,
    set_leader,
)
from magent2.directory.users import find_user
from magent2.errors import UnknownEntity
from magent2.gateway.openapi import problems
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, BODY_ERRORS, caller, json_body, parse_body
from magent2.gateway.routes.people import ADMINS, Name, directory_name, require_field, user_id
from magent2.gateway.services import Services
from magent2.gateway.streaming.sse import CURSOR_MAX
from magent2.models.api.directory import ChannelInfo, ChannelList, ChannelMemberInfo, ChannelMessages, ChannelRequest
from magent2.models.principal import Principal


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["channels"])

    @routes.get("/channels", responses=problems(*ACCESS_ERRORS))
    async def channels(request: Request) -> ChannelList:
        """Channels with an agent of the caller's in them; an admin sees all."""
        principal = caller(request)
        found = await list_channels(Log(services.bus), None if principal.admin else directory_name(principal))
        return ChannelList(channels=[channel_info(channel) for channel in found])

    @routes.post(
        "/channels",
        dependencies=ADMINS,
        responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 507),
        openapi_extra=json_body(ChannelRequest),
    )
    async def put_channel(request: Request) -> ChannelInfo:
        """Make a channel, change who is in it or leads it, or end it."""
        asked = await parse_body(request, services, ChannelRequest)
        if asked.action in ("create", "join"):
            await find_user(Log(services.bus), require_field(asked.user, "user"))
        return channel_info(await _change(Log(services.bus), asked))

    @routes.get("/channels/{name}/messages", responses=problems(*ACCESS_ERRORS, 404, 422))
    async def messages(
        name: Name, request: Request, before: Annotated[int | None, Query(ge=1, le=CURSOR_MAX)] = None
    ) -> ChannelMessages:
        """What was said in a channel, the last of it, oldest first."""
        channel = await _own_channel(services, caller(request), name)
        found = await read_channel(Log(services.bus), channel.name, before)
        told = [{"seq": record.seq, **record.payload} for record in found]
        more = found[0].seq if len(found) == HISTORY_PAGE and found[0].seq > 1 else None
        return ChannelMessages(messages=told, before=more)

    return routes


async def _change(log: Log, asked: ChannelRequest) -> Channel:
    if asked.action == "remove":
        return await remove_channel(log, asked.name)
    username = require_field(asked.username, "username")
    if asked.action in ("create", "join"):
        member = new_member(username, require_field(asked.user, "user"), require_field(asked.agent, "agent"))
        return (
            await create_channel(log, asked.name, member)
            if asked.action == "create"
            else await join_channel(log, asked.name, member)
        )
    return (
        await leave_channel(log, asked.name, username)
        if asked.action == "leave"
        else await set_leader(log, asked.name, username)
    )


async def _own_channel(services: Services, principal: Principal, name: str) -> Channel:
    """A channel with the caller in it; another is as unknown as one that never was."""
    channel = (await find_channel(Log(services.bus), name)).state
    if not principal.admin and user_id(principal) not in [member.user for member in channel.members]:
        raise UnknownEntity(f"there is no channel {name[:80]!r}")
    return channel


def channel_info(channel: Channel) -> ChannelInfo:
    members = [ChannelMemberInfo(username=one.username, user=one.user, agent=one.agent) for one in channel.members]
    return ChannelInfo(name=channel.name, leader=channel.leader, members=members, removed=channel.removed)
