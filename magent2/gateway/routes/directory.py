"""`/api/users`, `/api/friends`, `/api/swarms` and `/api/channels`: the directory."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

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
from magent2.directory.swarms import (
    Contact,
    Swarm,
    add_guest,
    create_swarm,
    find_swarm,
    list_contacts,
    list_swarms,
    remove_guest,
    remove_swarm,
    set_contact_blocked,
    set_swarm_open,
)
from magent2.directory.users import (
    PRINCIPAL_PREFIX,
    Friendship,
    User,
    accept_friendship,
    change_user,
    check_user_id,
    create_user,
    find_user,
    find_user_by_nametag,
    list_friendships,
    list_users,
    refuse_friendship,
    remove_friendship,
    remove_user,
    request_friendship,
)
from magent2.errors import UnknownEntity
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    admins_only,
    caller,
    json_body,
    parse_body,
)
from magent2.gateway.services import Services, services_of
from magent2.gateway.streaming.sse import CURSOR_MAX
from magent2.models.api.directory import (
    ChannelInfo,
    ChannelList,
    ChannelMemberInfo,
    ChannelMessages,
    ChannelRequest,
    FriendInfo,
    FriendList,
    FriendRequest,
    SwarmContactInfo,
    SwarmContactList,
    SwarmInfo,
    SwarmList,
    SwarmRequest,
    UserInfo,
    UserList,
    UserRequest,
)
from magent2.models.principal import Principal

Name = Annotated[str, Path(min_length=1, max_length=80)]
ADMINS = [Depends(admins_only)]


people_router = APIRouter(prefix=API, tags=["people"])
channels_router = APIRouter(prefix=API, tags=["channels"])


@people_router.get("/users", operation_id="list_users", dependencies=ADMINS, responses=problems(*ACCESS_ERRORS))
async def users(request: Request) -> UserList:
    """List the users."""
    services = services_of(request)
    return UserList(users=[user_info(user) for user in await list_users(Log(services.bus))])


@people_router.post(
    "/users",
    operation_id="put_user",
    dependencies=ADMINS,
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 507),
    openapi_extra=json_body(UserRequest),
)
async def put_user(request: Request) -> UserInfo:
    """Create a user, or change one."""
    services = services_of(request)
    body = await parse_body(request, services, UserRequest)
    add_audit_ids(request.scope, user=body.id)
    fields = {"agent": body.agent, "connector": body.connector, "target": body.target}
    if body.nametag is None:
        return user_info(await change_user(Log(services.bus), body.id, fields))
    return user_info(await create_user(Log(services.bus), body.id, body.nametag, fields))


@people_router.delete(
    "/users/{user:id}",
    operation_id="delete_user",
    dependencies=ADMINS,
    responses=problems(*ACCESS_ERRORS, 404, 422, 507),
)
async def drop_user(request: Request, user: Name) -> UserInfo:
    """Remove a user. The nametag is not given to another user."""
    services = services_of(request)
    return user_info(await remove_user(Log(services.bus), user))


def user_info(user: User) -> UserInfo:
    names = UserInfo.model_fields
    return UserInfo(**{name: getattr(user, name) for name in names})


@people_router.get("/friends", operation_id="list_friends", responses=problems(*ACCESS_ERRORS))
async def friends(request: Request) -> FriendList:
    """List the caller's friends and friend requests."""
    services = services_of(request)
    own = directory_name(caller(request))
    found = await list_friendships(Log(services.bus), own)
    return FriendList(friends=[await _shown_friend(services, own, friendship) for friendship in found])


@people_router.post(
    "/friends",
    operation_id="change_friendship",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 507),
    openapi_extra=json_body(FriendRequest),
)
async def befriend(request: Request) -> FriendInfo:
    """Request, accept, refuse or remove a friendship."""
    services = services_of(request)
    body = await parse_body(request, services, FriendRequest)
    add_audit_ids(request.scope, nametag=body.nametag, action=body.action)
    own = (await find_user(Log(services.bus), user_id(caller(request)))).state.id
    other = (await find_user_by_nametag(Log(services.bus), body.nametag)).state.id
    action = {
        "request": request_friendship,
        "accept": accept_friendship,
        "refuse": refuse_friendship,
        "remove": remove_friendship,
    }[body.action]
    return await _shown_friend(services, own, await action(Log(services.bus), own, other))


def user_id(principal: Principal) -> str:
    return check_user_id(principal.name)


def directory_name(principal: Principal) -> str:
    """Return the user id by which lists are filtered. A principal that is not a user owns nothing."""
    return principal.name.removeprefix(PRINCIPAL_PREFIX)


async def _shown_friend(services: Services, own: str, friendship: Friendship) -> FriendInfo:
    try:
        nametag = (await find_user(Log(services.bus), friendship.other(own))).state.nametag
    except UnknownEntity:
        nametag = ""  # removed meanwhile
    return FriendInfo(
        nametag=nametag,
        status=friendship.status,
        asked_by_you=friendship.asked_by == own,
        may_ask_at_ms=friendship.cool_ms if friendship.waits == own else 0,
    )


@people_router.get("/swarms", operation_id="list_swarms", responses=problems(*ACCESS_ERRORS))
async def swarms(request: Request) -> SwarmList:
    """List the caller's swarms. Administrators see all."""
    services = services_of(request)
    principal = caller(request)
    found = await list_swarms(Log(services.bus), None if principal.admin else directory_name(principal))
    return SwarmList(swarms=[swarm_info(swarm) for swarm in found])


@people_router.post(
    "/swarms",
    operation_id="put_swarm",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 507),
    openapi_extra=json_body(SwarmRequest),
)
async def put_swarm(request: Request) -> SwarmInfo:
    """Create a swarm, change who may contact it, or remove it."""
    services = services_of(request)
    body = await parse_body(request, services, SwarmRequest)
    add_audit_ids(request.scope, nametag=body.nametag, action=body.action, user=body.user)
    principal = caller(request)
    if body.action == "create":
        own = (await find_user(Log(services.bus), user_id(principal))).state.id
        return swarm_info(await create_swarm(Log(services.bus), body.nametag, own, require_field(body.agent, "agent")))
    await _own_swarm(services, principal, body.nametag)
    if body.action in ("block", "unblock"):
        user, blocked = require_field(body.user, "user"), body.action == "block"
        await set_contact_blocked(Log(services.bus), body.nametag, user, blocked=blocked)
        return swarm_info(await _own_swarm(services, principal, body.nametag))
    return swarm_info(await _change_swarm(Log(services.bus), body))


@people_router.get(
    "/swarms/{nametag:id}/contacts", operation_id="list_contacts", responses=problems(*ACCESS_ERRORS, 404, 422)
)
async def contacts(nametag: Name, request: Request) -> SwarmContactList:
    """List the contacts of a swarm of the caller."""
    services = services_of(request)
    swarm = await _own_swarm(services, caller(request), nametag)
    found = await list_contacts(Log(services.bus), swarm.nametag)
    return SwarmContactList(contacts=[contact_info(contact) for contact in found])


async def _change_swarm(log: Log, body: SwarmRequest) -> Swarm:
    if body.action in ("open", "close"):
        return await set_swarm_open(log, body.nametag, is_open=body.action == "open")
    if body.action == "let_in":
        return await add_guest(log, body.nametag, require_field(body.user, "user"))
    if body.action == "put_out":
        return await remove_guest(log, body.nametag, require_field(body.user, "user"))
    return await remove_swarm(log, body.nametag)


async def _own_swarm(services: Services, principal: Principal, nametag: str) -> Swarm:
    """Return a swarm of the caller. A swarm of another owner is reported as unknown."""
    swarm = (await find_swarm(Log(services.bus), nametag)).state
    if not principal.admin and swarm.owner != user_id(principal):
        raise UnknownEntity(f"there is no swarm {nametag[:80]!r}")
    return swarm


def swarm_info(swarm: Swarm) -> SwarmInfo:
    return SwarmInfo(
        nametag=swarm.nametag,
        owner=swarm.owner,
        agent=swarm.agent,
        open=swarm.open,
        guests=sorted(swarm.guests),
        removed=swarm.removed,
    )


def contact_info(contact: Contact) -> SwarmContactInfo:
    return SwarmContactInfo(user=contact.user, agent=contact.agent, blocked=contact.blocked)


def require_field(value: str | None, name: str) -> str:
    if value is None:
        raise Problem(422, "invalid", f"this action needs '{name}'")
    return value


@channels_router.get("/channels", operation_id="list_channels", responses=problems(*ACCESS_ERRORS))
async def channels(request: Request) -> ChannelList:
    """List the channels that the caller is a member of. Administrators see all."""
    services = services_of(request)
    principal = caller(request)
    found = await list_channels(Log(services.bus), None if principal.admin else directory_name(principal))
    return ChannelList(channels=[channel_info(channel) for channel in found])


@channels_router.post(
    "/channels",
    operation_id="put_channel",
    dependencies=ADMINS,
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 507),
    openapi_extra=json_body(ChannelRequest),
)
async def put_channel(request: Request) -> ChannelInfo:
    """Create a channel, change its members or its leader, or remove it."""
    services = services_of(request)
    body = await parse_body(request, services, ChannelRequest)
    add_audit_ids(request.scope, channel=body.name, action=body.action, user=body.user)
    if body.action in ("create", "join"):
        await find_user(Log(services.bus), require_field(body.user, "user"))
    return channel_info(await _change_channel(Log(services.bus), body))


@channels_router.get(
    "/channels/{name:id}/messages",
    operation_id="list_channel_messages",
    responses=problems(*ACCESS_ERRORS, 404, 422),
)
async def messages(
    name: Name, request: Request, before: Annotated[int | None, Query(ge=1, le=CURSOR_MAX)] = None
) -> ChannelMessages:
    """Return the last messages of a channel, oldest first."""
    services = services_of(request)
    channel = await _own_channel(services, caller(request), name)
    found = await read_channel(Log(services.bus), channel.name, before)
    shown = [{"seq": record.seq, **record.payload} for record in found]
    more = found[0].seq if len(found) == HISTORY_PAGE and found[0].seq > 1 else None
    return ChannelMessages(messages=shown, before=more)


async def _change_channel(log: Log, body: ChannelRequest) -> Channel:
    if body.action == "remove":
        return await remove_channel(log, body.name)
    username = require_field(body.username, "username")
    if body.action in ("create", "join"):
        member = new_member(username, require_field(body.user, "user"), require_field(body.agent, "agent"))
        return (
            await create_channel(log, body.name, member)
            if body.action == "create"
            else await join_channel(log, body.name, member)
        )
    return (
        await leave_channel(log, body.name, username)
        if body.action == "leave"
        else await set_leader(log, body.name, username)
    )


async def _own_channel(services: Services, principal: Principal, name: str) -> Channel:
    """Return a channel that the caller is a member of. Any other is reported as unknown."""
    channel = (await find_channel(Log(services.bus), name)).state
    if not principal.admin and user_id(principal) not in [member.user for member in channel.members]:
        raise UnknownEntity(f"there is no channel {name[:80]!r}")
    return channel


def channel_info(channel: Channel) -> ChannelInfo:
    members = [ChannelMemberInfo(username=one.username, user=one.user, agent=one.agent) for one in channel.members]
    return ChannelInfo(name=channel.name, leader=channel.leader, members=members, removed=channel.removed)
