"""Ledgers of conversations and runs in which nothing will be counted any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Expire
from magent2.errors import MalformedRecord, UnknownCursor
from magent2.mail.headers import RUN_STATUS, RUNNING
from magent2.models.address import SUBAGENT_SEPARATOR, checked_topic, stream_topic, usage_topic
from magent2.sessions.history import read_history
from magent2.sessions.usage.budgets import BudgetName, read_limits
from magent2.sessions.usage.ledger import read_ledger

LEDGER_RECORDS = 16  # records of a ledger of which one names its conversation: a checkpoint has a reservation behind it
DEAD_LETTERS_PAGE = 100


async def unneeded_limits(log: Log) -> AsyncIterator[BudgetName]:
    """Yield the limits that are set for conversations that were deleted. Such a conversation may have no ledger."""
    for name in (await read_limits(log)).set:
        if name.kind == "conversation" and await _is_deleted(log, name.name):
            yield name


async def unneeded_ledgers(log: Log, now_ms: int, max_age_s: float) -> AsyncIterator[BudgetName]:
    """Yield the ledgers of deleted conversations, and of runs that ended and whose last record is older than this."""
    prefix = usage_topic("conversation")
    async for info in log.all_topics(prefix):
        conversation = info.topic.removeprefix(prefix)
        if await _is_deleted(log, conversation):
            yield BudgetName("conversation", conversation)
    try:
        dead = await _conversations_with_dead_letters(log)
    except (MalformedRecord, UnknownCursor):  # mail that cannot be read may be of any run: all ledgers of runs stay
        return
    prefix = usage_topic("run")
    async for info in log.all_topics(prefix, (now_ms - round(max_age_s * 1000) + 1, "")):
        name = BudgetName("run", info.topic.removeprefix(prefix))
        try:
            needed = await _is_needed(log, name, now_ms, dead)
        except (MalformedRecord, UnknownCursor):  # what cannot be read cannot be judged: the ledger stays
            continue
        if not needed:
            yield name


async def _is_deleted(log: Log, conversation: str) -> bool:
    (stream,) = await log.describe(stream_topic(conversation))
    return stream.deleted


async def _is_needed(log: Log, name: BudgetName, now_ms: int, dead: Collection[str]) -> bool:
    """Whether a run of the tree may still call a model: it is in progress, it waits, or its message may be retried.

    A deleted ledger refuses records, so this must not be wrong about a run that goes on.
    """
    ledger, _ = (await read_ledger(log, name.topic)).without_old(now_ms)
    if ledger.open:
        return True
    page = await log.read(name.topic, OLDEST, LEDGER_RECORDS)
    named = (record.payload.get("conversation") for record in page.records if not record.erased)
    conversation = next((found for found in named if isinstance(found, str)), None)
    if conversation is None:
        return bool(dead)
    if await _is_deleted(log, conversation):
        return False
    beneath = conversation + SUBAGENT_SEPARATOR
    if any(one == conversation or one.startswith(beneath) for one in dead):
        return True
    run = (await read_history(log, conversation)).runs.get(name.name)  # those in progress are never dropped
    if run is not None and run.end is None:
        return True
    return await _has_mail(log, conversation) or await _has_active_subagent(log, beneath)


async def _has_active_subagent(log: Log, beneath: str) -> bool:
    async for info in log.all_topics(stream_topic(beneath)):
        if info.head.get(RUN_STATUS) == RUNNING or await _has_mail(log, checked_topic(info.topic)[1]):
            return True
    return False


async def _has_mail(log: Log, conversation: str) -> bool:
    """Whether mail of a conversation waits or is being processed, such as a dead letter that was retried."""
    return not await log.run(Expire(conversation, 0.0, dry_run=True))


async def _conversations_with_dead_letters(log: Log) -> set[str]:
    """The conversations of mail that may be retried."""
    found: set[str] = set()
    async for info in log.all_topics("dead:"):
        found |= await _conversations_of(log, info.topic)
    return found


async def _conversations_of(log: Log, dead_letters: str) -> set[str]:
    found: set[str] = set()
    after: int | str = OLDEST
    while True:
        page = await log.read(dead_letters, after, DEAD_LETTERS_PAGE)
        mail = (record.payload.get("mail") for record in page.records if not record.erased)
        found |= {str((one.get("payload") or {}).get("conversation_id")) for one in mail if isinstance(one, dict)}
        if not page.records or page.records[-1].seq >= page.last:
            return found
        after = page.records[-1].seq
