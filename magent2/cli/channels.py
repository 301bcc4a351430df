"""`channels`: who is in them, and what was said there. These open the bus itself; no gateway is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magent2.cli.options import bus_option, json_option
from magent2.cli.people import told
from magent2.cli.printing import note, say_json, say_table, shortened

if TYPE_CHECKING:
    from magent2.bus.flow import Flow
    from magent2.directory.channels import Channel


@click.group()
def channels() -> None:
    """Where agents of several users talk."""


def _member_options(command: Any) -> Any:
    command = click.option("--agent", required=True, help="The agent that takes part.")(command)
    return click.option("--user", required=True, help="The user that it works for.")(command)


@channels.command(epilog="Example: magent2 channels add launch ann --user ann --agent general")
@click.argument("name")
@click.argument("leader")
@_member_options
@bus_option
@json_option
def add(name: str, leader: str, user: str, agent: str, bus: str | None, as_json: bool) -> None:
    """Make a channel. LEADER is the name of its leader there, who hears everything."""
    from magent2.directory.channels import making_channel

    _tell(told(bus, _with_member(leader, user, agent, lambda member: making_channel(name, member))), as_json)


@channels.command()
@click.argument("name")
@click.argument("username")
@_member_options
@bus_option
@json_option
def join(name: str, username: str, user: str, agent: str, bus: str | None, as_json: bool) -> None:
    """Let an agent of a user take part, as USERNAME."""
    from magent2.directory.channels import joining

    _tell(told(bus, _with_member(username, user, agent, lambda member: joining(name, member))), as_json)


def _with_member(username: str, user: str, agent: str, doing: Any) -> Flow[Channel]:
    from magent2.directory.channels import new_member
    from magent2.directory.users import finding_user

    found = yield from finding_user(user)
    channel: Channel = yield from doing(new_member(username, found.state.id, agent))
    return channel


@channels.command()
@click.argument("name")
@click.argument("username")
@bus_option
@json_option
def leave(name: str, username: str, bus: str | None, as_json: bool) -> None:
    """Let USERNAME take part no longer."""
    from magent2.directory.channels import leaving

    _tell(told(bus, leaving(name, username)), as_json)


@channels.command()
@click.argument("name")
@click.argument("username")
@bus_option
@json_option
def lead(name: str, username: str, bus: str | None, as_json: bool) -> None:
    """Make USERNAME the leader."""
    from magent2.directory.channels import leading

    _tell(told(bus, leading(name, username)), as_json)


@channels.command("ls")
@bus_option
@json_option
def list_(bus: str | None, as_json: bool) -> None:
    """List the channels."""
    from magent2.directory.channels import listing_channels

    found = [_shown(channel) for channel in told(bus, listing_channels())]
    if as_json:
        say_json(found)
        return
    rows = [
        (f"#{channel['name']}", f"@{channel['leader']}", " ".join(f"@{one['username']}" for one in channel["members"]))
        for channel in found
    ]
    say_table(("CHANNEL", "LEADER", "MEMBERS"), rows)


@channels.command()
@click.argument("name")
@bus_option
@json_option
def messages(name: str, bus: str | None, as_json: bool) -> None:
    """Show the last that was said in a channel."""
    from magent2.directory.channels import reading_channel

    found = [{"seq": record.seq, **record.payload} for record in told(bus, reading_channel(name))]
    if as_json:
        say_json(found)
        return
    rows = [(item["seq"], f"@{item['from']}", shortened(item["text"]), " ".join(item["told"])) for item in found]
    say_table(("SEQ", "FROM", "TEXT", "TOLD"), rows)


@channels.command("rm")
@click.argument("name")
@bus_option
def remove(name: str, bus: str | None) -> None:
    """End a channel; what was said stays."""
    from magent2.directory.channels import removing_channel

    told(bus, removing_channel(name))
    note(f"#{name.removeprefix('#')} is gone")


def _tell(channel: Channel, as_json: bool) -> None:
    say_json(_shown(channel)) if as_json else note(f"#{channel.name} has {len(channel.members)} members")


def _shown(channel: Channel) -> dict[str, Any]:
    members = [{"username": one.username, "user": one.user, "agent": one.agent} for one in channel.members]
    return {"name": channel.name, "leader": channel.leader, "members": members}
