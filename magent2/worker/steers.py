"""Steers on their way into runs: which lanes they came for, and what of them waits in a lane.

A worker follows the inboxes of its agents and tells a run when a steer has come for its lane. Only then does the run
look into the lane, before it asks the model again: a run to which nobody speaks never looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from magent2.bus.interface import Engine
from magent2.bus.marks import KIND, STEER
from magent2.bus.operations import READ_LIMIT_MAX, Pending
from magent2.bus.patience import persist
from magent2.bus.records import ClaimedLane, MailRef, Record
from magent2.bus.watch import Watch
from magent2.models.address import chat_topic
from magent2.runner.steers import Steer
from magent2.worker.drive import Runner
from magent2.worker.following import Following
from magent2.worker.plan import read_letter

Lane = tuple[str, str]


class SteerPost(Following):
    """New mail of the agents whose runs can be steered."""

    def __init__(self, bus: Engine, runners: Mapping[str, Runner], worker: str) -> None:
        super().__init__(bus, steerable_inboxes(runners), worker)
        self._told = self._read = self._passed_on = 0  # how often there was news, and how far that has come
        self._progress = asyncio.Event()

    def note(self, topics: Iterable[str]) -> None:
        super().note(topics)
        self._told += self.waiting

    async def read(self, watch: Watch | None = None) -> list[Record]:
        told = self._told
        records = await super().read(watch)
        self._read = self._read if self.waiting else told
        return records

    def passed_on(self) -> None:
        """Every run was called that something has come for, of what was read."""
        self._passed_on = self._read
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def catch_up(self) -> None:
        """Until all that this worker has heard of by now is passed on."""
        told = self._told
        while self._passed_on < told:
            await self._progress.wait()


def steerable_inboxes(runners: Mapping[str, Runner]) -> list[str]:
    return [chat_topic(agent) for agent, runner in runners.items() if takes_steers(runner)]


def takes_steers(runner: Runner) -> bool:
    """Whether a runner asks its context for steers. To any other, a steer is mail like all mail."""
    return bool(getattr(runner, "takes_steers", False))


def lanes_of(records: Iterable[Record]) -> set[Lane]:
    """The lanes, agent and conversation, that steers among these records lie in."""
    return {
        (record.topic.partition(":")[2], str(record.payload.get("conversation_id", "")))
        for record in records
        if record.headers.get(STEER)
    }


class LaneSteers:
    """The steers that wait in one lane while a run holds it."""

    def __init__(self, bus: Engine, claimed: ClaimedLane, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._bus = bus
        self._catch_up = catch_up
        self._owner = claimed.owner
        self._waiting: tuple[Steer, ...] = ()
        self._come = claimed.pending > len(claimed.mail) or any(map(is_steer, claimed.mail))

    def call(self) -> None:
        """One may have come."""
        self._come = True

    async def look(self, own: MailRef) -> Sequence[Steer]:
        """All that wait, in order, but for the mail that the run answers; `Fenced` when the lane has another owner."""
        await self._catch_up()
        if self._come:
            self._come = False
            pending = Pending(self._owner, READ_LIMIT_MAX)
            mail = await persist(self._bus, pending, self._owner.token)
            steers = (steer_of(record) for record in mail if record.ref != own)
            self._waiting = tuple(steer for steer in steers if steer is not None)
        return self._waiting


def is_steer(record: Record) -> bool:
    return bool(record.headers.get(STEER)) and not record.erased and not record.headers.get(KIND)


def steer_of(record: Record) -> Steer | None:
    """Mail as a steer, if it is one. What cannot be read is left to a run of its own, which buries it in sight."""
    letter = read_letter(record) if is_steer(record) else None
    if letter is None or isinstance(letter, str) or letter.command is not None:
        return None
    return Steer(letter.envelope.id, letter.envelope.sender, letter.envelope.content or "", record.ref)
