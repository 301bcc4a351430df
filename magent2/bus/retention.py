"""Retention policies for the whole log. A sweep runs only on request and never drops unsettled mail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from magent2.bus.log import Log
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Compact, Delete, Erase, SweepBlobs, Trim
from magent2.bus.records import TopicInfo
from magent2.errors import InvalidInput
from magent2.models.address import checked_topic, conversation_topics

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
TOPICS_PAGE = 1000


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """How much of a topic is kept: the newest `count` records, or those younger than `age_s`."""

    count: int | None = None
    age_s: float | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.age_s is None):
            raise InvalidInput("TopicRetention takes exactly one of count and age_s")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a sweep removes. Topics of kinds that `keep` does not name are not trimmed."""

    keep: Mapping[str, TopicRetention] = field(default_factory=dict)  # by kind of topic: "chat", "dead" …
    compact_after_s: float = HOUR_S
    blobs_after_s: float = DAY_S
    expire_idle_s: float | None = None  # conversations without activity for this long are deleted


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Number of topics that a sweep visited, and of drafts, blobs and conversations that it removed."""

    topics: int = 0
    drafts: int = 0
    blobs: int = 0
    expired: int = 0


async def sweep(log: Log, policy: RetentionPolicy, now_ms: int) -> SweepResult:
    """Apply the policy to every topic once. Each step is idempotent, so an interrupted sweep is simply run again."""
    drafts = expired = 0
    topics = await _all_topics(log)
    for info in topics:
        kind, name = checked_topic(info.topic)
        idle_s = (now_ms - info.active_ms) / 1000
        if kind == "stream" and policy.expire_idle_s is not None and idle_s >= policy.expire_idle_s:
            await log.run(Delete(conversation_topics(name), conversation=name))
            expired += 1
            continue
        if kind == "stream":
            drafts += await log.run(Compact(info.topic, policy.compact_after_s))
        keep = policy.keep.get(kind)
        if keep is not None:
            await log.run(Trim(info.topic, keep=keep.count, max_age_s=keep.age_s))
    blobs = await log.run(SweepBlobs(policy.blobs_after_s))
    return SweepResult(topics=len(topics), drafts=drafts, blobs=blobs, expired=expired)


async def _all_topics(log: Log) -> list[TopicInfo]:
    found: list[TopicInfo] = []
    before: tuple[int, str] | None = None
    while True:
        page = await log.topics(before=before, limit=TOPICS_PAGE)
        found.extend(page.topics)
        if page.next is None:
            return found
        before = page.next


async def forget_records(log: Log, topic: str, seqs: Sequence[int]) -> None:
    """Erase any number of records with their digests. It is idempotent: run it again after an interruption."""
    for start in range(0, len(seqs), RECORDS_PER_APPEND_MAX):
        await log.run(Erase(topic, tuple(seqs[start : start + RECORDS_PER_APPEND_MAX]), forget=True))
