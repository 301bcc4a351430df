"""`/api/users`, `/api/friends`, `/api/swarms`: who can be written to, and who may."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from magent2.bus.log import Log
from magent2.directory.friends import (
    Friendship,
    accept_friendship,
    list_friendships,
    refuse_friendship,
    remove_friendship,
    request_friendship,
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
    User,
    change_user,
    check_user_id,
    create_user,
    find_user,
    find_user_by_nametag,
    list_users,
    remove_user,
)
from magent2.errors import UnknownEntity
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.api.dependencies import API, OF_BODY, OF_HOUSE, admins_only, asked_by, json_body, parsed
from magent2.gateway.services import House
from magent2.models.api.directory import (
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


def router(house: House) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["people"])
    _users(routes, house)
    _friends(routes, house)
    _swarms(routes, house)
    return routes


def _users(routes: APIRouter, house: House) -> None:
    @routes.get("/users", dependencies=ADMINS, responses=problems(*OF_HOUSE))
    async def users() -> UserList:
        """Everybody who has a nametag."""
        return UserList(users=[shown_user(user) for user in await list_users(Log(house.bus))])

    @routes.post(
        "/users",
        dependencies=ADMINS,
        responses=problems(*OF_HOUSE, *OF_BODY, 404, 409, 507),
        openapi_extra=json_body(UserRequest),
    )
    async def put_user(request: Request) -> UserInfo:
        """A new user, or other facts about one that there is."""
        asked = await parsed(request, house, UserRequest)
        facts = {"agent": asked.agent, "connector": asked.connector, "target": asked.target}
        if asked.nametag is None:
            return shown_user(await change_user(Log(house.bus), asked.id, facts))
        return shown_user(await create_user(Log(house.bus), asked.id, asked.nametag, facts))

    @routes.delete("/users/{user}", dependencies=ADMINS, responses=problems(*OF_HOUSE, 404, 422, 507))
    async def drop_user(user: Name) -> UserInfo:
        """Nobody can write to them any more; the nametag stays theirs."""
        return shown_user(await remove_user(Log(house.bus), user))


def shown_user(user: User) -> UserInfo:
    names = UserInfo.model_fields
    return UserInfo(**{name: getattr(user, name) for name in names})


def _friends(routes: APIRouter, house: House) -> None:
    @routes.get("/friends", responses=problems(*OF_HOUSE))
    async def friends(request: Request) -> FriendList:
        """The caller's friends, and who has asked whom."""
        own = listed_for(asked_by(request))
        found = await list_friendships(Log(house.bus), own)
        return FriendList(friends=[await _shown_friend(house, own, friendship) for friendship in found])

    @routes.post(
        "/friends", responses=problems(*OF_HOUSE, *OF_BODY, 404, 409, 507), openapi_extra=json_body(FriendRequest)
    )
    async def befriend(request: Request) -> FriendInfo:
        """Ask for a friendship, agree to one, refuse one, or end one."""
        asked = await parsed(request, house, FriendRequest)
        own = (await find_user(Log(house.bus), user_of(asked_by(request)))).state.id
        other = (await find_user_by_nametag(Log(house.bus), asked.nametag)).state.id
        doing = {
            "request": request_friendship,
            "accept": accept_friendship,
            "refuse": refuse_friendship,
            "remove": remove_friendship,
        }[asked.action]
        return await _shown_friend(house, own, await doing(Log(house.bus), own, other))


def user_of(principal: Principal) -> str:
    return check_user_id(principal.name)


def listed_for(principal: Principal) -> str:
    """Whose things a list shows; of a name that no user can have, none."""
    return principal.name.removeprefix(PRINCIPAL_PREFIX)


async def _shown_friend(house: House, own: str, friendship: Friendship) -> FriendInfo:
    try:
        nametag = (await find_user(Log(house.bus), friendship.other(own))).state.nametag
    except UnknownEntity:
        nametag = ""  # gone meanwhile
    return FriendInfo(
        nametag=nametag,
        status=friendship.status,
        asked_by_you=friendship.asked_by == own,
        may_ask_at_ms=friendship.cool_ms if friendship.waits == own else 0,
    )


def _swarms(routes: APIRouter, house: House) -> None:
    @routes.get("/swarms", responses=problems(*OF_HOUSE))
    async def swarms(request: Request) -> SwarmList:
        """The caller's swarms; an admin sees all."""
        principal = asked_by(request)
        found = await list_swarms(Log(house.bus), None if principal.admin else listed_for(principal))
        return SwarmList(swarms=[shown_swarm(swarm) for swarm in found])

    @routes.post(
        "/swarms", responses=problems(*OF_HOUSE, *OF_BODY, 404, 409, 507), openapi_extra=json_body(SwarmRequest)
    )
    async def put_swarm(request: Request) -> SwarmInfo:
        """Make a swarm of one's own, say whom it is open to, or end it."""
        asked = await parsed(request, house, SwarmRequest)
        principal = asked_by(request)
        if asked.action == "create":
            own = (await find_user(Log(house.bus), user_of(principal))).state.id
            return shown_swarm(await create_swarm(Log(house.bus), asked.nametag, own, needed(asked.agent, "agent")))
        await _own_swarm(house, principal, asked.nametag)
        if asked.action in ("block", "unblock"):
            user, blocked = needed(asked.user, "user"), asked.action == "block"
            await set_contact_blocked(Log(house.bus), asked.nametag, user, blocked=blocked)
            return shown_swarm(await _own_swarm(house, principal, asked.nametag))
        return shown_swarm(await _swarm_change(Log(house.bus), asked))

    @routes.get("/swarms/{nametag}/contacts", responses=problems(*OF_HOUSE, 404, 422))
    async def contacts(nametag: Name, request: Request) -> SwarmContactList:
        """Who has written to a swarm of the caller's."""
        swarm = await _own_swarm(house, asked_by(request), nametag)
        found = await list_contacts(Log(house.bus), swarm.nametag)
        return SwarmContactList(contacts=[shown_contact(contact) for contact in found])


async def _swarm_change(log: Log, asked: SwarmRequest) -> Swarm:
    if asked.action in ("open", "close"):
        return await set_swarm_open(log, asked.nametag, is_open=asked.action == "open")
    if asked.action == "let_in":
        return await add_guest(log, asked.nametag, needed(asked.user, "user"))
    if asked.action == "put_out":
        return await remove_guest(log, asked.nametag, needed(asked.user, "user"))
    return await remove_swarm(log, asked.nametag)


async def _own_swarm(house: House, principal: Principal, nametag: str) -> Swarm:
    """A swarm of the caller's; somebody else's is as unknown as one that never was."""
    swarm = (await find_swarm(Log(house.bus), nametag)).state
    if not principal.admin and swarm.owner != user_of(principal):
        raise UnknownEntity(f"nobody is called {nametag[:80]!r}")
    return swarm


def shown_swarm(swarm: Swarm) -> SwarmInfo:
    return SwarmInfo(
        nametag=swarm.nametag,
        owner=swarm.owner,
        agent=swarm.agent,
        open=swarm.open,
        guests=sorted(swarm.guests),
        removed=swarm.removed,
    )


def shown_contact(contact: Contact) -> SwarmContactInfo:
    return SwarmContactInfo(user=contact.user, agent=contact.agent, blocked=contact.blocked)


def needed(value: str | None, name: str) -> str:
    if value is None:
        raise Problem(422, "invalid", f"this action needs '{name}'")
    return value
