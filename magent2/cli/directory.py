"""The commands `users`, `friends`, `swarms` and `channels`: who may write to whom with the messaging tools.

They open the bus itself and need no gateway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from magent2.cli.options import F, bus_option, json_option, open_bus, run_on_bus
from magent2.cli.output import print_json, print_note, print_table, shortened

if TYPE_CHECKING:
    from magent2.bus.interface import Engine
    from magent2.directory.channels import Channel, ChannelMember
    from magent2.directory.swarms import Swarm
    from magent2.directory.users import Friendship, User


def _user_id(bus: Engine, name: str) -> str:
    """The id of a user that exists."""
    from magent2.bus.log import run_sync
    from magent2.directory.users import find_user

    return run_sync(bus, find_user, name).state.id


# --- users


@click.group()
def users() -> None:
    """Manage the users that agents act for."""


def _user_options(command: F) -> F:
    command = click.option("--target", metavar="NAME", help="Address of the user at the connector.")(command)
    command = click.option(
        "--connector", metavar="ID", help="Connector that reaches the user. Default: 'web', the session page."
    )(command)
    return click.option("--agent", metavar="NAME", help="Agent that answers for the user.")(command)


@users.command("add", epilog="Example: magent2 users add ann --nametag ann --agent general")
@click.argument("user")
@click.option("--nametag", required=True, metavar="TAG", help="Public name: 2 to 32 of a–z, 0–9 and _.")
@_user_options
@bus_option
@json_option
def add_user(
    user: str,
    nametag: str,
    agent: str | None,
    connector: str | None,
    target: str | None,
    bus: str | None,
    as_json: bool,
) -> None:
    """Add a user.

    'magent2 keys create --scope user:USER' creates an API key for them.
    """
    from magent2.directory.users import create_user

    facts = {"agent": agent, "connector": connector, "target": target}
    created = run_on_bus(bus, create_user, user, nametag, facts)
    print_json(_user_json(created)) if as_json else print_note(f"added user {created.id} as @{created.nametag}")


@users.command("set")
@click.argument("user")
@_user_options
@bus_option
@json_option
def set_user(
    user: str, agent: str | None, connector: str | None, target: str | None, bus: str | None, as_json: bool
) -> None:
    """Change the agent, connector or target of a user."""
    from magent2.directory.users import change_user

    facts = {"agent": agent, "connector": connector, "target": target}
    changed = run_on_bus(bus, change_user, user, facts)
    print_json(_user_json(changed)) if as_json else print_note(f"changed user {changed.id}")


@users.command("ls")
@bus_option
@json_option
def list_users(bus: str | None, as_json: bool) -> None:
    """List the users."""
    from magent2.directory.users import list_users

    found = [user for user in run_on_bus(bus, list_users) if not user.removed]
    if as_json:
        print_json([_user_json(user) for user in found])
        return
    rows = [(user.id, f"@{user.nametag}", user.agent or "-", user.connector, user.home) for user in found]
    print_table(("USER", "NAMETAG", "AGENT", "CONNECTOR", "HOME"), rows)


@users.command("rm")
@click.argument("user")
@bus_option
def remove_user(user: str, bus: str | None) -> None:
    """Remove a user.

    Their nametag stays reserved. 'magent2 erase' deletes their data as well.
    """
    from magent2.directory.users import remove_user

    run_on_bus(bus, remove_user, user)
    print_note(f"removed user {user}")


def _user_json(user: User) -> dict[str, object]:
    return {
        "id": user.id,
        "nametag": user.nametag,
        "agent": user.agent,
        "connector": user.connector,
        "target": user.target,
        "home": user.home,
        "removed": user.removed,
    }


# --- friends


@click.group()
def friends() -> None:
    """Manage which users may write to each other.

    Two users may write to each other once both have agreed.
    """


@friends.command("ls")
@click.argument("user", required=False)
@bus_option
@json_option
def list_friends(user: str | None, bus: str | None, as_json: bool) -> None:
    """List the friendships of USER, or of all users."""
    from magent2.directory.users import list_friendships

    found = run_on_bus(bus, list_friendships, user)
    if as_json:
        print_json([_friendship_json(friendship) for friendship in found])
        return
    rows = [(*friendship.users, friendship.status, friendship.asked_by) for friendship in found]
    print_table(("USER", "USER", "STATUS", "ASKED BY"), rows)


def _add_friend_command(name: str, help_text: str) -> None:
    @friends.command(name, help=help_text)
    @click.argument("user")
    @click.argument("other")
    @bus_option
    @json_option
    def command(user: str, other: str, bus: str | None, as_json: bool) -> None:
        from magent2.bus.log import run_sync
        from magent2.directory.users import (
            accept_friendship,
            refuse_friendship,
            remove_friendship,
            request_friendship,
        )

        change = {
            "request": request_friendship,
            "accept": accept_friendship,
            "refuse": refuse_friendship,
            "rm": remove_friendship,
        }[name]
        with open_bus(bus) as engine:
            now = run_sync(engine, change, _user_id(engine, user), _user_id(engine, other))
        print_json(_friendship_json(now)) if as_json else print_note(f"{user} and {other}: {now.status}")


_add_friend_command("request", "USER asks OTHER for a friendship, or accepts if OTHER has asked already.")
_add_friend_command("accept", "USER accepts the request of OTHER.")
_add_friend_command("refuse", "USER refuses the request of OTHER, who can ask again after seven days.")
_add_friend_command("rm", "USER ends the friendship with OTHER, or withdraws a request.")


def _friendship_json(now: Friendship) -> dict[str, object]:
    return {"users": list(now.users), "status": now.status, "asked_by": now.asked_by, "waits": now.waits}


# --- swarms


@click.group()
def swarms() -> None:
    """Manage agents that users can write to by a nametag."""


@swarms.command("add", epilog="Example: magent2 swarms add desk --owner bob --agent support --open")
@click.argument("nametag")
@click.option("--owner", required=True, metavar="USER", help="User that owns the swarm.")
@click.option("--agent", required=True, metavar="NAME", help="Agent that answers its messages.")
@click.option("--open", "is_open", is_flag=True, help="Open it to all users. Default: only to users that are let in.")
@bus_option
@json_option
def add_swarm(nametag: str, owner: str, agent: str, is_open: bool, bus: str | None, as_json: bool) -> None:
    """Create a swarm."""
    from magent2.bus.log import run_sync
    from magent2.directory.swarms import create_swarm

    with open_bus(bus) as engine:
        created = run_sync(engine, create_swarm, nametag, _user_id(engine, owner), agent, is_open=is_open)
    _print_swarm(created, as_json)


@swarms.command("ls")
@bus_option
@json_option
def list_swarms(bus: str | None, as_json: bool) -> None:
    """List the swarms."""
    from magent2.directory.swarms import list_swarms

    found = run_on_bus(bus, list_swarms)
    if as_json:
        print_json([_swarm_json(swarm) for swarm in found])
        return
    rows = [
        (f"@{swarm.nametag}", swarm.owner, swarm.agent, "all users" if swarm.open else f"{len(swarm.guests)} users")
        for swarm in found
    ]
    print_table(("SWARM", "OWNER", "AGENT", "OPEN TO"), rows)


@swarms.command("contacts")
@click.argument("nametag")
@bus_option
@json_option
def list_contacts(nametag: str, bus: str | None, as_json: bool) -> None:
    """List the users who have written to a swarm."""
    from magent2.directory.swarms import find_swarm, list_contacts

    found = run_on_bus(bus, list_contacts, nametag)
    if not found:
        run_on_bus(bus, find_swarm, nametag)  # one that does not exist is an error, not an empty list
    if as_json:
        print_json([{"user": one.user, "agent": one.agent, "blocked": one.blocked} for one in found])
        return
    print_table(("USER", "AGENT", "BLOCKED"), [(one.user, one.agent, one.blocked) for one in found])


@swarms.command("set")
@click.argument("nametag")
@click.option(
    "--open/--closed", "is_open", default=None, help="Open it to all users, or only to users that are let in."
)
@click.option("--let-in", metavar="USER", help="Open it to this user.")
@click.option("--put-out", metavar="USER", help="Close it to this user.")
@click.option("--block", metavar="USER", help="Block messages from and to this contact.")
@click.option("--unblock", metavar="USER", help="Unblock this contact.")
@bus_option
@json_option
def set_swarm(
    nametag: str,
    is_open: bool | None,
    let_in: str | None,
    put_out: str | None,
    block: str | None,
    unblock: str | None,
    bus: str | None,
    as_json: bool,
) -> None:
    """Change who may write to a swarm."""
    from magent2.bus.log import run_sync
    from magent2.directory.swarms import add_guest, find_swarm, remove_guest, set_contact_blocked, set_swarm_open

    with open_bus(bus) as engine:
        if is_open is not None:
            run_sync(engine, set_swarm_open, nametag, is_open=is_open)
        if let_in:
            run_sync(engine, add_guest, nametag, let_in)
        if put_out:
            run_sync(engine, remove_guest, nametag, put_out)
        if block:
            run_sync(engine, set_contact_blocked, nametag, block, blocked=True)
        if unblock:
            run_sync(engine, set_contact_blocked, nametag, unblock, blocked=False)
        changed = run_sync(engine, find_swarm, nametag).state
    _print_swarm(changed, as_json)


@swarms.command("rm")
@click.argument("nametag")
@bus_option
def remove_swarm(nametag: str, bus: str | None) -> None:
    """Remove a swarm."""
    from magent2.directory.swarms import remove_swarm

    run_on_bus(bus, remove_swarm, nametag)
    print_note(f"removed swarm @{nametag.removeprefix('@')}")


def _print_swarm(swarm: Swarm, as_json: bool) -> None:
    print_json(_swarm_json(swarm)) if as_json else print_note(f"agent {swarm.agent} answers for @{swarm.nametag}")


def _swarm_json(swarm: Swarm) -> dict[str, object]:
    return {
        "nametag": swarm.nametag,
        "owner": swarm.owner,
        "agent": swarm.agent,
        "open": swarm.open,
        "guests": sorted(swarm.guests),
    }


# --- channels


@click.group()
def channels() -> None:
    """Manage channels, in which agents of several users talk."""


def _member_options(command: F) -> F:
    command = click.option("--agent", required=True, metavar="NAME", help="Agent that joins.")(command)
    return click.option("--user", required=True, metavar="USER", help="User that the agent acts for.")(command)


@channels.command("add", epilog="Example: magent2 channels add launch ann --user ann --agent general")
@click.argument("name")
@click.argument("leader")
@_member_options
@bus_option
@json_option
def add_channel(name: str, leader: str, user: str, agent: str, bus: str | None, as_json: bool) -> None:
    """Create a channel.

    LEADER is the name of its leader in the channel, who receives every message.
    """
    from magent2.bus.log import run_sync
    from magent2.directory.channels import create_channel

    with open_bus(bus) as engine:
        created = run_sync(engine, create_channel, name, _member(engine, leader, user, agent))
    _print_channel(created, as_json)


@channels.command()
@click.argument("name")
@click.argument("username")
@_member_options
@bus_option
@json_option
def join(name: str, username: str, user: str, agent: str, bus: str | None, as_json: bool) -> None:
    """Add an agent of a user to a channel.

    USERNAME is its name in the channel.
    """
    from magent2.bus.log import run_sync
    from magent2.directory.channels import join_channel

    with open_bus(bus) as engine:
        joined = run_sync(engine, join_channel, name, _member(engine, username, user, agent))
    _print_channel(joined, as_json)


def _member(bus: Engine, username: str, user: str, agent: str) -> ChannelMember:
    from magent2.directory.channels import new_member

    return new_member(username, _user_id(bus, user), agent)


@channels.command()
@click.argument("name")
@click.argument("username")
@bus_option
@json_option
def leave(name: str, username: str, bus: str | None, as_json: bool) -> None:
    """Remove USERNAME from a channel."""
    from magent2.directory.channels import leave_channel

    _print_channel(run_on_bus(bus, leave_channel, name, username), as_json)


@channels.command()
@click.argument("name")
@click.argument("username")
@bus_option
@json_option
def lead(name: str, username: str, bus: str | None, as_json: bool) -> None:
    """Make USERNAME the leader of a channel."""
    from magent2.directory.channels import set_leader

    _print_channel(run_on_bus(bus, set_leader, name, username), as_json)


@channels.command("ls")
@bus_option
@json_option
def list_channels(bus: str | None, as_json: bool) -> None:
    """List the channels."""
    from magent2.directory.channels import list_channels

    found = run_on_bus(bus, list_channels)
    if as_json:
        print_json([_channel_json(channel) for channel in found])
        return
    rows = [
        (f"#{channel.name}", f"@{channel.leader}", " ".join(f"@{one.username}" for one in channel.members))
        for channel in found
    ]
    print_table(("CHANNEL", "LEADER", "MEMBERS"), rows)


@channels.command()
@click.argument("name")
@bus_option
@json_option
def messages(name: str, bus: str | None, as_json: bool) -> None:
    """Show the latest messages of a channel."""
    from magent2.directory.channels import find_channel, read_channel

    records = run_on_bus(bus, read_channel, name)
    if not records:
        run_on_bus(bus, find_channel, name)  # one that does not exist is an error, not an empty list
    if as_json:
        print_json([{"seq": record.seq, **record.payload} for record in records])
        return
    rows = [
        (record.seq, f"@{record.payload['from']}", shortened(record.payload["text"]), " ".join(record.payload["told"]))
        for record in records
    ]
    print_table(("SEQ", "FROM", "TEXT", "TOLD"), rows)


@channels.command("rm")
@click.argument("name")
@bus_option
def remove_channel(name: str, bus: str | None) -> None:
    """Remove a channel. Its messages are kept."""
    from magent2.directory.channels import remove_channel

    run_on_bus(bus, remove_channel, name)
    print_note(f"removed channel #{name.removeprefix('#')}")


def _print_channel(channel: Channel, as_json: bool) -> None:
    print_json(_channel_json(channel)) if as_json else print_note(f"#{channel.name} has {len(channel.members)} members")


def _channel_json(channel: Channel) -> dict[str, object]:
    members = [{"username": one.username, "user": one.user, "agent": one.agent} for one in channel.members]
    return {"name": channel.name, "leader": channel.leader, "members": members}
