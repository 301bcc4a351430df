"""Feeds of new control mail and steers, from the time a worker starts, and the steers of one lane.

Why feeds: mail waits in its lane until the lane is claimed, but a stop or a steer for a run in progress must reach the
run now. A feed reads the inbox records themselves. The claim that follows puts the same records into their lanes.
Only then are they passed on to runs, so that a run that is stopped or steered finds the mail in its own lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from magent2.bus.interface import Engine
from magent2.bus.operations import READ_LIMIT_MAX, Describe, Pending, Read
from magent2.bus.records import ClaimedLane, MailRef, Owner, Page, Record
from magent2.bus.retry import retry_call, retry_while_unavailable
from magent2.bus.watch import Watch
from magent2.errors import Fenced, MalformedRecord, UnknownCursor
from magent2.mail.headers import KIND, STEER
from magent2.mail.lane_loop import LaneKey
from magent2.models.address import chat_topic, control_topic
from magent2.runner.context import Steer
from magent2.worker.lane_mail import parse_mail
from magent2.worker.runner_adapter import Runner

# Records per read. Every engine puts more than this into lanes in one claim, so what was read before a claim is in its
# lane after it.
PAGE = 200


class TopicFeed:
    """New records of some topics, each once."""

    def __init__(self, bus: Engine, topics: Iterable[str], worker: str) -> None:
        self._topics = tuple(topics)
        self._bus = bus
        self._worker = worker
        self._cursors: dict[str, int] = {}
        self._changed: set[str] = set()
        self._read: list[Record] = []  # by a read that failed at a later topic

    async def begin(self) -> int:
        """Start at the end of the topics. Return how many claims it may take until all earlier mail is in its lane."""
        return await self.add(self._topics)

    async def add(self, topics: Iterable[str]) -> int:
        """Follow more topics, each from its end. Return how many claims it may take, as `begin` does.

        Topics that are followed already keep their cursor.
        """
        joining = tuple(topic for topic in topics if topic not in self._cursors)
        if not joining:
            return 0
        state = await retry_while_unavailable(self._bus, Describe(joining), self._worker)
        self._cursors |= {info.topic: info.last for info in state}
        return max(1 + (info.last - info.floor) // PAGE for info in state)

    def discard(self, topic: str) -> None:
        self._cursors.pop(topic, None)
        self._changed.discard(topic)

    def note(self, topics: Iterable[str]) -> None:
        """Note that these topics may have new records."""
        self._changed.update(topic for topic in topics if topic in self._cursors)

    @property
    def waiting(self) -> bool:
        """Whether there may be records to read."""
        return bool(self._changed)

    async def read(self, watch: Watch | None = None) -> list[Record]:
        """Return new records, up to a page of each topic. A watch that delivers records saves the read.

        If it raises, the next call returns the records that were read so far, and reads on at the topic that failed.
        """
        for topic in sorted(self._changed):
            self._changed.discard(topic)
            try:
                page = await self._read_page(topic, watch)
            except BaseException:
                self._changed.add(topic)
                raise
            if page is None:
                self._changed.add(topic)
                continue
            self._read += page.records
            if page.records:
                self._cursors[topic] = page.records[-1].seq
                if self._cursors[topic] < page.last:
                    self._changed.add(topic)
        records, self._read = self._read, []
        return records

    async def _read_page(self, topic: str, watch: Watch | None) -> Page | None:
        """Return the next page, or `None` when the cursor had to be moved first. Skipped records are in their lanes."""

        async def next_page() -> Page:
            if watch is not None:
                return await self._bus.next_page(watch, topic, self._cursors[topic])
            return await self._bus.acall(Read(topic, self._cursors[topic], PAGE))

        try:
            return await retry_call(next_page, self._worker)
        except MalformedRecord as error:
            self._cursors[topic] = error.seq
        except UnknownCursor:
            describe = Describe((topic,))
            self._cursors[topic] = (await retry_while_unavailable(self._bus, describe, self._worker))[0].floor
        return None


class ControlFeed(TopicFeed):
    """New control mail of some agents."""

    def __init__(self, bus: Engine, agents: Iterable[str], worker: str) -> None:
        super().__init__(bus, map(control_topic, agents), worker)

    async def lies_in(self, owner: Owner, record: Record) -> bool:
        """Return whether a command waits in this lane.

        A command that was read late may have left the lane with an earlier run already. It must not stop this one.
        """
        return any(waiting.ref == record.ref for waiting in await self.commands_in(owner))

    async def commands_in(self, owner: Owner) -> Sequence[Record]:
        """Return the control mail that waits in this lane; none if it has another owner."""
        pending = Pending(owner, READ_LIMIT_MAX)
        try:
            mail = await retry_while_unavailable(self._bus, pending, self._worker)
        except Fenced:
            return ()
        return [record for record in mail if record.topic.startswith("control:")]


class SteerFeed(TopicFeed):
    """New mail of the agents whose runs can be steered.

    Notifications are counted. The counters say how far the worker has come with them: a run that is about to call its
    model waits in `catch_up` until every steer that the worker was notified of before is passed on.
    """

    def __init__(self, bus: Engine, runners: Mapping[str, Runner], worker: str) -> None:
        super().__init__(bus, steerable_inboxes(runners), worker)
        self._notified_count = 0  # notifications so far
        self._read_count = 0  # of these, notifications whose records are read
        self._passed_on_count = 0  # of these, notifications whose steers are passed on to runs
        self._progress = asyncio.Event()

    def note(self, topics: Iterable[str]) -> None:
        super().note(topics)
        self._notified_count += self.waiting

    async def read(self, watch: Watch | None = None) -> list[Record]:
        # The count is taken before the read: a notification that arrives during it may be about a later record.
        notified = self._notified_count
        records = await super().read(watch)
        if not self.waiting:
            self._read_count = notified
        return records

    def mark_passed_on(self) -> None:
        """Note that every run was told of the steers that were read. Waiting callers of `catch_up` check again."""
        self._passed_on_count = self._read_count
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def catch_up(self) -> None:
        """Wait until everything that this worker has been notified of by now is passed on."""
        notified = self._notified_count
        while self._passed_on_count < notified:
            await self._progress.wait()


def steerable_inboxes(runners: Mapping[str, Runner]) -> list[str]:
    return [chat_topic(agent) for agent, runner in runners.items() if takes_steers(runner)]


def takes_steers(runner: Runner) -> bool:
    """Return whether a runner reads steers from its context. For any other runner a steer is ordinary mail."""
    return bool(getattr(runner, "takes_steers", False))


def lanes_with_steers(records: Iterable[Record]) -> set[LaneKey]:
    """Return the lanes of the steers among these records."""
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
        self._may_have_new = claimed.pending > len(claimed.mail) or any(map(_is_steer, claimed.mail))

    def note_arrival(self) -> None:
        """Note that a steer may have arrived in the lane."""
        self._may_have_new = True

    async def read(self, own: MailRef) -> Sequence[Steer]:
        """Return all steers that wait, in order, without `own`, the mail that the run answers.

        Raises `Fenced` when the lane has another owner.
        """
        await self._catch_up()
        if self._may_have_new:
            # Cleared before the read: a steer that arrives during the read sets it again.
            self._may_have_new = False
            pending = Pending(self._owner, READ_LIMIT_MAX)
            mail = await retry_while_unavailable(self._bus, pending, self._owner.token)
            steers = (_parse_steer(record) for record in mail if record.ref != own)
            self._waiting = tuple(steer for steer in steers if steer is not None)
        return self._waiting


def _is_steer(record: Record) -> bool:
    return bool(record.headers.get(STEER)) and not record.erased and not record.headers.get(KIND)


def _parse_steer(record: Record) -> Steer | None:
    """Return mail as a steer, if it is one. Unreadable mail is left to its own turn in the lane, which buries it."""
    parsed = parse_mail(record) if _is_steer(record) else None
    if parsed is None or isinstance(parsed, str) or parsed.command is not None:
        return None
    return Steer(parsed.envelope.id, parsed.envelope.sender, parsed.envelope.content or "", record.ref)
