"""`users`, `friends`, `swarms`: who can be written to, and who may. These open the bus itself; no gateway is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magent2.cli.options import bus_option, json_option
from magent2.cli.printing import note, say_json, say_table
from magent2.cli.transfer import opened

if TYPE_CHECKING:
    from magent2.bus.flow import Flow
    from magent2.directory.friends import Friendship
    from magent2.directory.swarms import Swarm


def told(bus: str | None, flow: Flow[Any]) -> Any:
    """What a decision comes to on the bus of this command."""
    from magent2.bus.flow import run

    with opened(bus) as (engine, _):
        return run(engine, flow)


@click.group()
def users() -> None:
    """People with a nametag, whom agents work for."""


def _user_options(command: Any) -> Any:
    command = click.option("--target", help="Whom the connector knows them as.")(command)
    command = click.option("--connector", help="Where they are reached; 'web', the session page, at first.")(command)
    return click.option("--agent", help="Who answers for them in the foreground.")(command)


@users.command(epilog="Example: magent2 users add ann --nametag ann --agent general")
@click.argument("user")
@click.option("--nametag", required=True, help="What others call them: 2 to 32 of a–z, 0–9 and _.")
@_user_options
@bus_option
@json_option
def add(
    user: str,
    nametag: str,
    agent: str | None,
    connector: str | None,
    target: str | None,
    bus: str | None,
    as_json: bool,
) -> None:
    """Add a user; their key is made with 'magent2 keys create --scope user:USER'."""
    from magent2.directory.users import making_user

    made = told(bus, making_user(user, nametag, {"agent": agent, "connector": connector, "target": target}))
    say_json(_user(made)) if as_json else note(f"user {made.id} is @{made.nametag}")


@users.command("set")
@click.argument("user")
@_user_options
@bus_option
@json_option
def set_(
    user: str, agent: str | None, connector: str | None, target: str | None, bus: str | None, as_json: bool
) -> None:
    """Change who answers for a user, or where they are reached."""
    from magent2.directory.users import changing_user

    changed = told(bus, changing_user(user, {"agent": agent, "connector": connector, "target": target}))
    say_json(_user(changed)) if as_json else note(f"user {changed.id} is changed")


@users.command("ls")
@bus_option
@json_option
def list_users(bus: str | None, as_json: bool) -> None:
    """List the users."""
    from magent2.directory.users import listing_users

    found = [_user(user) for user in told(bus, listing_users()) if not user.removed]
    if as_json:
        say_json(found)
        return
    rows = [
        (user["id"], f"@{user['nametag']}", user["agent"] or "-", user["connector"], user["home"]) for user in found
    ]
    say_table(("USER", "NAMETAG", "AGENT", "CONNECTOR", "HOME"), rows)


@users.command("rm")
@click.argument("user")
@bus_option
def remove_user(user: str, bus: str | None) -> None:
    """Remove a user. Their nametag stays theirs."""
    from magent2.directory.users import removing_user

    told(bus, removing_user(user))
    note(f"nobody can write to {user} any more")


def _user(user: Any) -> dict[str, Any]:
    return {name: getattr(user, name) for name in ("id", "nametag", "agent", "connector", "target", "home", "removed")}


@click.group()
def friends() -> None:
    """Who may write to whom: both must have agreed."""


@friends.command("ls")
@click.argument("user", required=False)
@bus_option
@json_option
def list_friends(user: str | None, bus: str | None, as_json: bool) -> None:
    """List friendships, of USER or of all."""
    from magent2.directory.friends import listing_friendships

    found = [_friendship(friendship) for friendship in told(bus, listing_friendships(user))]
    if as_json:
        say_json(found)
        return
    rows = [(*friendship["users"], friendship["status"], friendship["asked_by"]) for friendship in found]
    say_table(("USER", "USER", "STATUS", "ASKED BY"), rows)


def _friend_command(name: str, sentence: str) -> None:
    @friends.command(name, help=sentence)
    @click.argument("user")
    @click.argument("other")
    @bus_option
    @json_option
    def command(user: str, other: str, bus: str | None, as_json: bool) -> None:
        from magent2.directory import friends as decisions

        doing = {
            "request": decisions.requesting,
            "accept": decisions.accepting,
            "refuse": decisions.refusing,
            "rm": decisions.removing,
        }
        now = told(bus, _friends_of(user, other, doing[name]))
        say_json(_friendship(now)) if as_json else note(f"{user} and {other}: {now.status}")


def _friends_of(user: str, other: str, doing: Any) -> Flow[Friendship]:
    """Between two users that there are."""
    from magent2.directory.users import finding_user

    one = yield from finding_user(user)
    two = yield from finding_user(other)
    found: Friendship = yield from doing(one.state.id, two.state.id)
    return found


_friend_command("request", "USER asks OTHER for a friendship; one who was asked by them agrees.")
_friend_command("accept", "USER agrees to be a friend of OTHER.")
_friend_command("refuse", "USER refuses OTHER, who may ask again in seven days.")
_friend_command("rm", "USER ends the friendship with OTHER, or takes back a request.")


def _friendship(now: Friendship) -> dict[str, Any]:
    return {"users": list(now.users), "status": now.status, "asked_by": now.asked_by, "waits": now.waits}


@click.group()
def swarms() -> None:
    """Agents that others can write to by a nametag."""


@swarms.command("add", epilog="Example: magent2 swarms add desk --owner bob --agent support --open")
@click.argument("nametag")
@click.option("--owner", required=True, help="The user whose swarm it is.")
@click.option("--agent", required=True, help="Who answers what is sent to it.")
@click.option("--open", "is_open", is_flag=True, help="Open to everybody, not only to those who are let in.")
@bus_option
@json_option
def add_swarm(nametag: str, owner: str, agent: str, is_open: bool, bus: str | None, as_json: bool) -> None:
    """Make a swarm."""
    from magent2.directory.swarms import making_swarm
    from magent2.directory.users import finding_user

    def flow() -> Flow[Swarm]:
        found = yield from finding_user(owner)
        return (yield from making_swarm(nametag, found.state.id, agent, is_open=is_open))

    _tell(told(bus, flow()), as_json)


@swarms.command("ls")
@bus_option
@json_option
def list_swarms(bus: str | None, as_json: bool) -> None:
    """List the swarms."""
    from magent2.directory.swarms import listing_swarms

    found = [_swarm(swarm) for swarm in told(bus, listing_swarms())]
    if as_json:
        say_json(found)
        return
    rows = [
        (f"@{swarm['nametag']}", swarm["owner"], swarm["agent"], "everybody" if swarm["open"] else len(swarm["guests"]))
        for swarm in found
    ]
    say_table(("SWARM", "OWNER", "AGENT", "OPEN TO"), rows)


@swarms.command("contacts")
@click.argument("nametag")
@bus_option
@json_option
def list_contacts(nametag: str, bus: str | None, as_json: bool) -> None:
    """List who has written to a swarm."""
    from magent2.directory.swarms import listing_contacts

    found = [
        {"user": contact.user, "agent": contact.agent, "blocked": contact.blocked}
        for contact in told(bus, listing_contacts(nametag))
    ]
    if as_json:
        say_json(found)
        return
    say_table(("USER", "AGENT", "BLOCKED"), [tuple(contact.values()) for contact in found])


@swarms.command("set")
@click.argument("nametag")
@click.option("--open/--closed", "is_open", default=None, help="To everybody, or only to those who are let in.")
@click.option("--let-in", metavar="USER", help="Open it to this user.")
@click.option("--put-out", metavar="USER", help="Close it to this user.")
@click.option("--block", metavar="USER", help="Take nothing from this contact, and send them nothing.")
@click.option("--unblock", metavar="USER", help="Take that back.")
@bus_option
@json_option
def set_swarm(nametag: str, bus: str | None, as_json: bool, **wanted: Any) -> None:
    """Say whom a swarm is open to."""
    _tell(told(bus, _changing(nametag, wanted)), as_json)


def _changing(nametag: str, wanted: dict[str, Any]) -> Flow[Swarm]:
    from magent2.directory import swarms as decisions

    if wanted["is_open"] is not None:
        yield from decisions.opening_swarm(nametag, is_open=wanted["is_open"])
    if wanted["let_in"]:
        yield from decisions.letting_in(nametag, wanted["let_in"])
    if wanted["put_out"]:
        yield from decisions.putting_out(nametag, wanted["put_out"])
    for user, blocked in ((wanted["block"], True), (wanted["unblock"], False)):
        if user:
            yield from decisions.blocking(nametag, user, blocked=blocked)
    found = yield from decisions.finding_swarm(nametag)
    return found.state


@swarms.command("rm")
@click.argument("nametag")
@bus_option
def remove_swarm(nametag: str, bus: str | None) -> None:
    """End a swarm."""
    from magent2.directory.swarms import removing_swarm

    told(bus, removing_swarm(nametag))
    note(f"@{nametag.removeprefix('@')} is gone")


def _tell(swarm: Swarm, as_json: bool) -> None:
    say_json(_swarm(swarm)) if as_json else note(f"@{swarm.nametag} is answered by {swarm.agent}")


def _swarm(swarm: Swarm) -> dict[str, Any]:
    return {
        "nametag": swarm.nametag,
        "owner": swarm.owner,
        "agent": swarm.agent,
        "open": swarm.open,
        "guests": sorted(swarm.guests),
    }
