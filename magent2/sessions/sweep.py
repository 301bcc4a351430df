"""One sweep of a log: removes what a retention policy no longer keeps, in small steps.

Every step is one operation that removes a bounded number of records and may be repeated. So a sweep holds up no writer
for long, can be interrupted after any step, and two sweeps at the same time do no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from magent2.bus.log import Log
from magent2.bus.operations import (
    BLOBS_PER_STEP_MAX,
    OLDEST,
    Append,
    Compact,
    Delete,
    Expire,
    LastSeqIs,
    SweepBlobs,
    Trim,
)
from magent2.bus.records import Record, TopicInfo
from magent2.bus.retention import RetentionPolicy, TopicRetention, trim_steps
from magent2.errors import ConditionFailed, MalformedRecord, TopicDeleted, UnknownCursor
from magent2.mail.headers import OWNER, SCHEDULED
from magent2.models.address import (
    chat_topic,
    checked_topic,
    control_topic,
    history_topic,
    schedule_runs_topic,
    stream_topic,
)
from magent2.sessions.files import UPLOAD_ABANDONED_S, delete_file, delete_files_in, is_abandoned
from magent2.sessions.history import read_history, settings_record
from magent2.sessions.schedules.store import (
    SESSION_DELETED,
    SLOTS_KEPT,
    delete_schedule,
    end_schedules_in,
    schedules_in,
)
from magent2.sessions.usage.budgets import read_limits, set_limit
from magent2.sessions.usage.unneeded import unneeded_ledgers, unneeded_limits

RECORDS_PAGE = 100  # a record of a history may have hundreds of kB, and one read returns the whole page


@dataclass(slots=True)
class SweepResult:
    """Number of conversations that a sweep looked at, and of what it removed, or would remove in a dry run."""

    visited: int = 0
    tokens: int = 0
    events: int = 0
    history: int = 0
    mail: int = 0
    dead_letters: int = 0
    conversations: int = 0
    files: int = 0
    schedules: int = 0
    ledgers: int = 0
    blobs: int = 0


class RecordLine(NamedTuple):
    """What the decisions below need of a record: a topic may be too large to hold the records themselves."""

    seq: int
    at_ms: int
    draft: str | None = None
    closes: str | None = None
    kind: str = ""  # of a record of a history
    run: str = ""

    @classmethod
    def of(cls, record: Record) -> RecordLine:
        kind, run = str(record.payload.get("kind", "")), str(record.payload.get("run", ""))
        return cls(record.seq, record.at_ms, record.draft, record.closes, kind, run)


@dataclass(slots=True)
class Sweep:
    """One pass over a log.

    `now_ms` is the wall clock of the store, which stamps records and heads. Conversations whose last activity is before
    `since_ms` are left out: an earlier sweep has seen them as they are. `before` is where an interrupted sweep goes on.
    `dry_run` only counts.
    """

    log: Log
    policy: RetentionPolicy
    now_ms: int
    since_ms: int = 0
    before: tuple[int, str] | None = None
    dry_run: bool = False
    result: SweepResult = field(default_factory=SweepResult)

    async def run(self) -> SweepResult:
        """Make all steps at once."""
        async for _ in self.steps():
            pass
        return self.result

    async def steps(self) -> AsyncIterator[None]:
        """Sweep, and yield after each step."""
        phases = (
            self._expire_conversations,
            self._sweep_conversations,
            self._sweep_dead_letters,
            self._sweep_inboxes,
            self._sweep_files,
            self._sweep_schedules,
            self._sweep_ledgers,
            self._sweep_blobs,
        )
        for phase in phases:
            async for _ in phase():
                yield

    # --- conversations

    async def _expire_conversations(self) -> AsyncIterator[None]:
        idle_s = self.policy.idle_conversations_s
        if idle_s is None:
            return
        newest_idle = (self.now_ms - round(idle_s * 1000) + 1, "")
        async for info in self.log.all_topics("stream:", newest_idle):
            conversation = checked_topic(info.topic)[1]
            if info.head.get(SCHEDULED) and await self._is_scheduled(info, conversation):
                continue
            expired = await self.log.run(Expire(conversation, idle_s, self.dry_run))
            if expired and not self.dry_run:
                await delete_files_in(self.log, conversation, scrub=False)
                if info.head.get(SCHEDULED):
                    await end_schedules_in(self.log, conversation, info.head.get(OWNER), SESSION_DELETED)
            self.result.conversations += expired
            yield

    async def _is_scheduled(self, info: TopicInfo, conversation: str) -> bool:
        """Whether a conversation gets messages of a schedule. It is in use, however long the next slot is away."""
        found = await schedules_in(self.log, conversation, info.head.get(OWNER))
        return any(schedule.status != "ended" for schedule in found)

    async def _sweep_conversations(self) -> AsyncIterator[None]:
        """Visit conversations, most recently active first, until those that an earlier sweep has seen."""
        policy = self.policy
        if policy.tokens_after_s is None and not policy.events.is_limited and not policy.history.is_limited:
            return
        async for info in self.log.all_topics("stream:", self.before):
            if info.active_ms < self.since_ms:
                return
            self.result.visited += 1
            async for _ in self._sweep_conversation(info):
                yield
            self.before = (info.active_ms, info.topic)

    async def _sweep_conversation(self, info: TopicInfo) -> AsyncIterator[None]:
        policy = self.policy
        if policy.tokens_after_s is not None:
            async for dropped in self._compact(info.topic, policy.tokens_after_s):
                self.result.tokens += dropped
                yield
        async for dropped in self._trim(info.topic, policy.events):
            self.result.events += dropped
            yield
        if policy.history.is_limited:
            async for dropped in self._trim_history(checked_topic(info.topic)[1]):
                self.result.history += dropped
                yield

    async def _compact(self, topic: str, min_age_s: float) -> AsyncIterator[int]:
        if self.dry_run:
            yield closed_drafts(await self._lines(topic), self.now_ms - round(min_age_s * 1000))
            return
        after: int | None = 0
        while after is not None:
            result = await self.log.run(Compact(topic, min_age_s, after))
            yield result.dropped
            after = result.next

    async def _trim(self, topic: str, keep: TopicRetention) -> AsyncIterator[int]:
        if self.dry_run and keep.is_limited:
            yield outside_limits(await self._lines(topic), keep, self.now_ms)
            return
        for trim in keep.trims(topic):
            async for result in trim_steps(self.log, trim):
                yield result.dropped

    async def _trim_history(self, conversation: str) -> AsyncIterator[int]:
        """Remove ended runs. The settings of the conversation are part of its history, so they are recorded again."""
        topic = history_topic(conversation)
        lines = await self._lines(topic)
        through = trimmable_history(lines, self.policy.history, self.now_ms)
        dropped = [line for line in lines if line.seq <= through]
        if not any(line.run for line in dropped):
            return
        if self.dry_run:
            yield len(dropped)
            return
        if any(line.kind == "settings" for line in dropped):
            history = await read_history(self.log, conversation)
            carried = settings_record(conversation, history.settings)
            try:
                await self.log.append(Append(records=(carried,), conditions=(LastSeqIs(topic, history.last),)))
            except (ConditionFailed, TopicDeleted):  # the conversation is in use: the next sweep tries again
                return
        async for result in trim_steps(self.log, Trim(topic, through=through)):
            yield result.dropped

    # --- agents and blobs

    async def _sweep_dead_letters(self) -> AsyncIterator[None]:
        if not self.policy.dead_letters.is_limited:
            return
        async for info in self.log.all_topics("dead:"):
            async for dropped in self._trim(info.topic, self.policy.dead_letters):
                self.result.dead_letters += dropped
                yield

    async def _sweep_inboxes(self) -> AsyncIterator[None]:
        if not self.policy.mail.is_limited:
            return
        async for info in self.log.all_topics("agent:"):
            agent = checked_topic(info.topic)[1]
            for inbox in (chat_topic(agent), control_topic(agent)):
                async for dropped in self._trim(inbox, self.policy.mail):
                    self.result.mail += dropped
                    yield

    async def _sweep_files(self) -> AsyncIterator[None]:
        """Delete files that are too old, uploads whose gateway died, and files of deleted conversations."""
        max_age_s = self.policy.files_max_age_s
        oldest = (0, "") if max_age_s is None else (self.now_ms - round(max_age_s * 1000) + 1, "")
        if max_age_s is not None:
            async for info in self.log.all_topics("file:", oldest):
                await self._delete_file(info)
                yield
        # An earlier sweep has looked at files that were complete then. A full sweep looks at all of them.
        since_ms = max(oldest[0], self.since_ms - round(UPLOAD_ABANDONED_S * 1000))
        async for info in self.log.all_topics("file:"):
            if info.active_ms < since_ms:
                return
            if is_abandoned(info, self.now_ms) or await self._is_orphan(info):
                await self._delete_file(info)
                yield

    async def _delete_file(self, info: TopicInfo) -> None:
        self.result.files += 1
        if not self.dry_run:
            await delete_file(self.log, checked_topic(info.topic)[1], scrub=False)

    async def _is_orphan(self, info: TopicInfo) -> bool:
        """Whether a file belongs to a conversation that was deleted, or that its request has never begun."""
        conversation = info.head.get("conversation")
        if not isinstance(conversation, str):
            return False
        (stream,) = await self.log.describe(stream_topic(conversation))
        is_old = info.active_ms <= self.now_ms - round(UPLOAD_ABANDONED_S * 1000)
        return stream.deleted or (is_old and not stream.last and not stream.head)

    async def _sweep_schedules(self) -> AsyncIterator[None]:
        """Delete schedules that ended long ago, and all but the last records of what became of slots."""
        async for info in self._ended_schedules():
            self.result.schedules += 1
            if not self.dry_run:
                await delete_schedule(self.log, checked_topic(info.topic)[1], scrub=False)
            yield
        async for info in self.log.all_topics("schedule:"):
            if self.dry_run or info.active_ms < self.since_ms:
                return
            runs = schedule_runs_topic(checked_topic(info.topic)[1])
            async for _ in trim_steps(self.log, Trim(runs, keep=SLOTS_KEPT)):
                yield

    async def _ended_schedules(self) -> AsyncIterator[TopicInfo]:
        max_age_s = self.policy.schedules_after_s
        if max_age_s is None:
            return
        async for info in self.log.all_topics("schedule:", (self.now_ms - round(max_age_s * 1000) + 1, "")):
            if info.head.get("status") == "ended":
                yield info

    async def _sweep_ledgers(self) -> AsyncIterator[None]:
        """Delete the ledgers of deleted conversations and of runs that ended long ago, and the limits set for them.

        Only a full sweep does. The ledgers of users, their sums by day, and the ledger of the deployment stay.
        """
        max_age_s = self.policy.ledgers_after_s
        if max_age_s is None or self.since_ms:
            return
        async for name in unneeded_limits(self.log):
            if not self.dry_run:
                await set_limit(self.log, name, None, "system")
            yield
        async for name in unneeded_ledgers(self.log, self.now_ms, max_age_s):
            self.result.ledgers += 1
            if not self.dry_run:
                await self.log.run(Delete((name.topic,), scrub=False))
                if name in (await read_limits(self.log)).set:
                    await set_limit(self.log, name, None, "system")
            yield

    async def _sweep_blobs(self) -> AsyncIterator[None]:
        if self.policy.blobs_after_s is None:
            return
        dropped = BLOBS_PER_STEP_MAX
        while dropped == BLOBS_PER_STEP_MAX:
            dropped = await self.log.run(SweepBlobs(self.policy.blobs_after_s, dry_run=self.dry_run))
            self.result.blobs += dropped
            yield
            if self.dry_run:
                return

    # --- reading

    async def _lines(self, topic: str) -> list[RecordLine]:
        """Read a topic from its oldest record to its end, or up to a record that cannot be read."""
        lines: list[RecordLine] = []
        after = OLDEST
        while True:
            try:
                page = await self.log.read(topic, after, RECORDS_PAGE)
            except (MalformedRecord, UnknownCursor):  # an unknown cursor: another process has trimmed the topic
                return lines
            lines += map(RecordLine.of, page.records)
            if not page.records or page.records[-1].seq >= page.last:
                return lines
            after = page.records[-1].seq


async def sweep_log(log: Log, policy: RetentionPolicy, now_ms: int, *, dry_run: bool = False) -> SweepResult:
    """Sweep the whole log at once."""
    return await Sweep(log, policy, now_ms, dry_run=dry_run).run()


# --- decisions


def closed_drafts(lines: Iterable[RecordLine], closed_ms: int) -> int:
    """Count the drafts that a record closed at this time or before."""
    closed, pieces = 0, Counter[str]()
    for line in lines:
        if line.draft is not None:
            pieces[line.draft] += 1
        elif line.closes is not None and line.at_ms <= closed_ms:
            closed += pieces.pop(line.closes, 0)
    return closed


def outside_limits(lines: list[RecordLine], keep: TopicRetention, now_ms: int) -> int:
    """Count the oldest records that are too old, or too many."""
    excess = 0 if keep.max_count is None else max(0, len(lines) - keep.max_count)
    old = 0
    if keep.max_age_s is not None:
        oldest_kept_ms = now_ms - round(keep.max_age_s * 1000)
        old = next((n for n, line in enumerate(lines) if line.at_ms > oldest_kept_ms), len(lines))
    return max(excess, old)


def trimmable_history(lines: list[RecordLine], keep: TopicRetention, now_ms: int) -> int:
    """Return the seq up to which a history can be trimmed: the last one before which all runs have ended."""
    through, not_ended = 0, set[str]()
    for line in lines[: outside_limits(lines, keep, now_ms)]:
        if line.kind == "end":
            not_ended.discard(line.run)
        elif line.run:
            not_ended.add(line.run)
        if not not_ended:
            through = line.seq
    return through
