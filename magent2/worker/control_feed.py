"""Following inboxes of agents from the moment a worker begins: new records, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from magent2.bus.base import EngineBase
from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Describe, Pending, Read
from magent2.bus.records import ClaimedLane, MailRef, Owner, Page, Record
from magent2.bus.retry import retry_call, retry_while_unavailable
from magent2.bus.watch import Watch
from magent2.errors import Fenced, MalformedRecord, UnknownCursor
from magent2.mail.headers import KIND, STEER
from magent2.models.address import chat_topic, control_topic
from magent2.runner.context import Steer
from magent2.worker.lane_plan import parse_mail
from magent2.worker.runner_adapter import Runner

PAGE = 200  # fewer than any engine sorts in one claim: what was read before a claim is in its lane after it


class TopicFeed:
    """New records of some topics."""

    def __init__(self, bus: Engine, topics: Iterable[str], worker: str) -> None:
        self._topics = tuple(topics)
        self._bus = bus
        self._worker = worker
        self._cursors: dict[str, int] = {}
        self._changed: set[str] = set()

    async def begin(self) -> int:
        """Start at the end of the logs; how many claims it may take until all that lies before is in its lane."""
        return await self.add(self._topics)

    async def add(self, topics: Iterable[str]) -> int:
        """The same for topics that join; those that are followed already go on where they are."""
        joining = tuple(topic for topic in topics if topic not in self._cursors)
        if not joining:
            return 0
        describe = Describe(joining)
        state = await retry_while_unavailable(self._bus, describe, self._worker)
        self._cursors |= {info.topic: info.last for info in state}
        return max(1 + (info.last - info.floor) // PAGE for info in state)

    def discard(self, topic: str) -> None:
        self._cursors.pop(topic, None)
        self._changed.discard(topic)

    def note(self, topics: Iterable[str]) -> None:
        """These topics may have something new."""
        self._changed.update(topic for topic in topics if topic in self._cursors)

    @property
    def waiting(self) -> bool:
        return bool(self._changed)

    async def read(self, watch: Watch | None = None) -> list[Record]:
        """What is new, up to a page of each topic. The watch may have brought it along."""
        records: list[Record] = []
        for topic in sorted(self._changed):
            self._changed.discard(topic)
            page = await self._page(topic, watch)
            if page is None:
                self._changed.add(topic)
                continue
            records += page.records
            if page.records:
                self._cursors[topic] = page.records[-1].seq
                if self._cursors[topic] < page.last:
                    self._changed.add(topic)
        return records

    async def _page(self, topic: str, watch: Watch | None) -> Page | None:
        """The next page; `None` when the cursor had to be moved first. The lanes have what is passed over."""
        try:
            return await retry_call(lambda: self._next(topic, watch), self._worker)
        except MalformedRecord as error:
            self._cursors[topic] = error.seq
        except UnknownCursor:
            describe = Describe((topic,))
            self._cursors[topic] = (await retry_while_unavailable(self._bus, describe, self._worker))[0].floor
        return None

    async def _next(self, topic: str, watch: Watch | None) -> Page:
        if watch is not None and isinstance(self._bus, EngineBase):
            return await self._bus.next_page(watch, topic, self._cursors[topic])
        page: Page = await self._bus.acall(Read(topic, self._cursors[topic], PAGE))
        return page


class ControlFeed(TopicFeed):
    """New control records of some agents, each once."""

    def __init__(self, bus: Engine, agents: Iterable[str], worker: str) -> None:
        super().__init__(bus, map(control_topic, agents), worker)

    async def lies_in(self, owner: Owner, record: Record) -> bool:
        """Whether a command waits in this lane. One that was read late may have ended another run already."""
        pending = Pending(owner, READ_LIMIT_MAX)
        try:
            mail = await retry_while_unavailable(self._bus, pending, self._worker)
        except Fenced:
            return False
        return any(waiting.ref == record.ref for waiting in mail)


Lane = tuple[str, str]


class SteerFeed(TopicFeed):
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
            mail = await retry_while_unavailable(self._bus, pending, self._owner.token)
            steers = (steer_of(record) for record in mail if record.ref != own)
            self._waiting = tuple(steer for steer in steers if steer is not None)
        return self._waiting


def is_steer(record: Record) -> bool:
    return bool(record.headers.get(STEER)) and not record.erased and not record.headers.get(KIND)


def steer_of(record: Record) -> Steer | None:
    """Mail as a steer, if it is one. What cannot be read is left to a run of its own, which buries it in sight."""
    parsed = parse_mail(record) if is_steer(record) else None
    if parsed is None or isinstance(parsed, str) or parsed.command is not None:
        return None
    return Steer(parsed.envelope.id, parsed.envelope.sender, parsed.envelope.content or "", record.ref)
