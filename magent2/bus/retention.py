"""Retention policies: which records, conversations and blobs a sweep removes, and after what time.

By default only the drafts of messages that are complete are removed, blobs that no record has named for a week,
schedules that ended a month ago, and ledgers of runs that ended a month ago.
Everything else stays until a policy names it.
`sessions/sweep.py` applies a policy to a log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Erase, Trim
from magent2.bus.records import TrimResult

# A live reader of a stream is never this far behind. The gateway disconnects a reader that takes nothing for 30 s
# (`send_max_s`), and a client that resumes after a longer pause reads the closing record, which has the whole text.
# Twenty times that leaves room for clocks that differ and for a gateway with a larger `send_max_s`.
TOKENS_AFTER_S = 600.0
SWEEP_EVERY_S = 300.0
# A blob is named by a record moments after it was stored. A gateway or worker that dies in between leaves it behind.
# Messages that a run holds while it waits for an approval name theirs later: within `approval_max_s`, by default a day.
BLOBS_AFTER_S = 7 * 86_400.0
SCHEDULES_AFTER_S = 30 * 86_400.0
LEDGERS_AFTER_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """How much of a topic is kept: records younger than `max_age_s`, and no more than `max_count`. None: no limit."""

    max_age_s: float | None = None
    max_count: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.max_age_s is not None or self.max_count is not None

    def trims(self, topic: str) -> list[Trim]:
        """Return the operations that apply the limits to a topic."""
        by_age = [] if self.max_age_s is None else [Trim(topic, max_age_s=self.max_age_s)]
        by_count = [] if self.max_count is None else [Trim(topic, keep=self.max_count)]
        return by_age + by_count


UNLIMITED = TopicRetention()


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What a sweep removes. `None` and `UNLIMITED` mean: nothing.

    `tokens_after_s`        drafts of a run whose text or end was recorded this long ago
    `events`                events of a conversation, in its stream
    `history`               ended runs of a conversation, which its agents remember
    `mail`                  mail in agents' inboxes that is settled
    `dead_letters`          mail that no agent could process
    `idle_conversations_s`  whole conversations without activity for this long
    `files_max_age_s`       files that were uploaded this long ago
    `blobs_after_s`         blobs that no record names
    `schedules_after_s`     schedules that ended this long ago
    `ledgers_after_s`       ledgers of runs that ended this long ago, and those of deleted conversations
    """

    tokens_after_s: float | None = TOKENS_AFTER_S
    events: TopicRetention = UNLIMITED
    history: TopicRetention = UNLIMITED
    mail: TopicRetention = UNLIMITED
    dead_letters: TopicRetention = UNLIMITED
    idle_conversations_s: float | None = None
    files_max_age_s: float | None = None
    blobs_after_s: float | None = BLOBS_AFTER_S
    schedules_after_s: float | None = SCHEDULES_AFTER_S
    ledgers_after_s: float | None = LEDGERS_AFTER_S
    sweep_every_s: float = SWEEP_EVERY_S  # time between the end of a sweep and the next one


async def trim_steps(log: Log, trim: Trim) -> AsyncIterator[TrimResult]:
    """Run a trim until nothing more is to be dropped, and yield the result of each step."""
    more = True
    while more:
        result = await log.run(trim)
        yield result
        more = result.more


async def forget_records(log: Log, topic: str, seqs: Sequence[int]) -> None:
    """Erase any number of records with their digests. It is idempotent: run it again after an interruption."""
    for start in range(0, len(seqs), RECORDS_PER_APPEND_MAX):
        await log.run(Erase(topic, tuple(seqs[start : start + RECORDS_PER_APPEND_MAX]), forget=True))
