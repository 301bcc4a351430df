"""The command `schedule`: messages that are sent later, or again and again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from magent2.cli.options import GatewayOptions, confirm, gateway_options, json_option, yes_option
from magent2.cli.output import print_data, print_json, print_note, print_table, shortened

if TYPE_CHECKING:
    from magent2.client import ScheduleDetail, ScheduleInfo, SlotInfo
    from magent2.models.api.messages import WhenBusy
    from magent2.models.api.schedules import Missed

PAGE_SCHEDULES = 100
LOCAL_TIME = "%Y-%m-%d %H:%M:%S"


@click.group()
def schedules() -> None:
    """Send messages at a time, after a duration, or by a cron expression."""


@schedules.command(
    epilog="Examples: magent2 schedules add 'Stand-up in five minutes' -c c-1 --cron '55 9 * * 1-5' --timezone"
    " Europe/Berlin;  magent2 schedules add 'Is the build green?' --agent general --in 15m"
)
@click.argument("text")
@click.option("-c", "--conversation", "session_id", metavar="ID", help="Conversation that gets the message.")
@click.option("--agent", metavar="NAME", help="Agent that answers. Alone, the schedule gets a conversation of its own.")
@click.option("--at", metavar="TIME", help="At this instant, as 2026-03-29T09:00:00+02:00.")
@click.option("--in", "in_", metavar="DURATION", help="After this time, as 90s, 15m, 1h30m or 2d.")
@click.option("--cron", metavar="EXPRESSION", help="At these times: minute, hour, day of month, month, day of week.")
@click.option("--timezone", metavar="ZONE", help="Time zone of --cron, --at and --until. Default: UTC.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    show_default=True,
    help="If no worker was there in time: send nothing, one message, or all of them.",
)
@click.option(
    "--when-busy",
    type=click.Choice(["queue", "steer", "interrupt", "reject"]),
    default="queue",
    show_default=True,
    help="While another message is being answered: wait, join its run, stop its run first, or fail.",
)
@click.option("--until", metavar="TIME", help="Send nothing after this instant.")
@click.option("--max-runs", type=click.IntRange(min=1), metavar="N", help="End after N times.")
@click.option("--id", "schedule_id", metavar="ID", help="Id of the schedule. A second one with the id is not created.")
@json_option
@gateway_options
def add(  # noqa: PLR0913  one parameter per option
    text: str,
    *,
    session_id: str | None,
    agent: str | None,
    at: str | None,
    in_: str | None,
    cron: str | None,
    timezone: str | None,
    missed: Missed,
    when_busy: WhenBusy,
    until: str | None,
    max_runs: int | None,
    schedule_id: str | None,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Add a schedule that sends TEXT.

    Exactly one of --at, --in and --cron says when.
    """
    with gateway.connect() as client:
        created = client.create_schedule(
            text,
            session_id=session_id,
            agent=agent,
            at=at,
            in_=in_,
            cron=cron,
            timezone=timezone,
            missed=missed,
            when_busy=when_busy,
            until=until,
            max_runs=max_runs,
            schedule_id=schedule_id,
        )
    if as_json:
        print_json(created)
        return
    print_data(created.schedule_id)
    print_note(f"next: {_local(created.next_at)}, to conversation {created.session_id}")


@schedules.command("ls")
@click.option("-c", "--conversation", "session_id", metavar="ID", help="List only schedules of this conversation.")
@click.option("--owner", metavar="USER", help="List only schedules of this owner.")
@json_option
@gateway_options
def list_(session_id: str | None, owner: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """List schedules, most recently changed first. Times are local."""
    found: list[ScheduleInfo] = []
    before: str | None = None
    with gateway.connect() as client:
        while True:
            page = client.schedules(session_id=session_id, limit=PAGE_SCHEDULES, before=before, owner=owner)
            found += page.schedules
            before = page.next
            if before is None:
                break
    if as_json:
        print_json(found)
        return
    rows = [
        (one.schedule_id, one.status, _local(one.next_at), _timing(one), one.session_id, shortened(_note(one), 40))
        for one in found
    ]
    print_table(("ID", "STATUS", "NEXT", "WHEN", "CONVERSATION", "TEXT"), rows)


@schedules.command()
@click.argument("schedule_id", metavar="ID")
@json_option
@gateway_options
def show(schedule_id: str, as_json: bool, gateway: GatewayOptions) -> None:
    """Show a schedule and what became of its last times."""
    with gateway.connect() as client:
        found = client.schedule(schedule_id)
    print_json(found) if as_json else _print_schedule(found)


def _print_schedule(found: ScheduleDetail) -> None:
    print_data(f"{found.schedule_id}  {found.status}  {_timing(found)}  conversation {found.session_id}")
    print_data(f"next {_local(found.next_at)}  runs {found.runs}  failures {found.failures}  skipped {found.skipped}")
    if found.last_error is not None:
        print_data(f"last error: {found.last_error}")
    if found.end_reason is not None:
        print_data(f"ended: {found.end_reason}")
    print_data(found.text if found.text is not None else "(the text was erased with its conversation)")
    for slot in found.recent:
        print_data(f"{_local(slot.slot or slot.at)}  {slot.outcome}  {_slot_note(slot)}")


def _slot_note(slot: SlotInfo) -> str:
    return slot.error or slot.message_id or (f"{slot.count} times" if slot.count else "")


@schedules.command()
@click.argument("schedule_id", metavar="ID")
@gateway_options
def pause(schedule_id: str, gateway: GatewayOptions) -> None:
    """Pause a schedule.

    What would be sent until it is resumed is not sent later.
    """
    with gateway.connect() as client:
        client.pause_schedule(schedule_id)
    print_note(f"paused {schedule_id}")


@schedules.command()
@click.argument("schedule_id", metavar="ID")
@gateway_options
def resume(schedule_id: str, gateway: GatewayOptions) -> None:
    """Resume a paused schedule."""
    with gateway.connect() as client:
        resumed = client.resume_schedule(schedule_id)
    print_note(f"resumed {schedule_id}, next: {_local(resumed.next_at)}")


@schedules.command()
@click.argument("schedule_id", metavar="ID")
@json_option
@gateway_options
def run(schedule_id: str, as_json: bool, gateway: GatewayOptions) -> None:
    """Send the message of a schedule now.

    Its other times stay as they are.
    """
    with gateway.connect() as client:
        sent = client.run_schedule(schedule_id)
    print_json(sent) if as_json else print_note(f"sent {sent.envelope_id} to conversation {sent.conversation_id}")


@schedules.command("rm")
@click.argument("schedule_ids", metavar="ID...", nargs=-1, required=True)
@yes_option
@gateway_options
def delete(schedule_ids: tuple[str, ...], yes: bool, gateway: GatewayOptions) -> None:
    """Delete schedules.

    Messages that they have sent stay.
    """
    if not yes:
        count = len(schedule_ids)
        confirm(f"Delete {count} schedule{'s' if count > 1 else ''}? This cannot be undone.")
    with gateway.connect() as client:
        for schedule_id in schedule_ids:
            client.delete_schedule(schedule_id)
            print_note(f"deleted {schedule_id}")


def _timing(one: ScheduleInfo) -> str:
    if one.cron is not None:
        return f"{one.cron} {one.timezone}"
    return f"in {one.in_s:g} s" if one.in_s is not None else f"at {_local(one.at)}"


def _note(one: ScheduleInfo) -> str:
    return f"{one.title} [{one.last_error}]" if one.last_error is not None else one.title


def _local(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():{LOCAL_TIME}}"
