"""Dead letters: mail that could not be processed, kept in `dead:{agent}` until it is retried or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

from magent2.bus.log import Log
from magent2.bus.operations import READ_LIMIT_MAX, Append, Erase, SetHead, Settle
from magent2.bus.records import ID_MAX_CHARS, AppendResult, MailRef, NewRecord, Owner, Record
from magent2.errors import InvalidInput, Refused, TopicDeleted, UnknownCursor
from magent2.models.address import check_name, dead_topic
from magent2.models.json_types import JsonMapping

DEAD_PAGE = 100
BATCH_PAGES_MAX = 20  # pages that one batch reads, also if no letter on them is chosen
DEAD_PREFIX = dead_topic("")
RETRY_OF = "retry_of"  # header: the number of the dead letter that held this mail


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Mail that could not be processed: the reason, the number of attempts, and the unchanged mail."""

    seq: int
    agent: str
    conversation_id: str
    reason: str
    attempts: int
    mail: JsonMapping = field(repr=False)
    buried_ms: int

    @classmethod
    def parse(cls, record: Record) -> DeadLetter:
        payload = record.payload
        return cls(
            seq=record.seq,
            agent=str(payload["agent"]),
            conversation_id=str(payload["conversation_id"]),
            reason=str(payload["reason"]),
            attempts=int(payload["attempts"]),
            mail=payload["mail"],
            buried_ms=record.at_ms,
        )


def bury(
    owner: Owner,
    mail: Record,
    reason: str,
    attempts: int,
    records: tuple[NewRecord, ...] = (),
    *,
    leaving: tuple[MailRef, ...] = (),
    heads: tuple[SetHead, ...] = (),
) -> Settle:
    """Settle mail that cannot be processed and keep it in `dead:{agent}`.

    `records` and `heads` report it in the conversation. `leaving` is all mail that leaves the lane with it; by default
    only the mail itself.
    """
    dead = NewRecord(
        dead_topic(owner.agent),
        {
            "agent": owner.agent,
            "conversation_id": owner.conversation,
            "reason": reason,
            "attempts": attempts,
            "mail": {
                "topic": mail.topic,
                "seq": mail.seq,
                "id": mail.id,
                "payload": mail.payload,
                "headers": dict(mail.headers),
            },
        },
    )
    return Settle(owner=owner, mail=leaving or (mail.ref,), records=(dead, *records), heads=heads)


def burial_forms(
    owner: Owner,
    mail: Record,
    reason: str,
    attempts: int,
    records: tuple[NewRecord, ...] = (),
    *,
    leaving: tuple[MailRef, ...] = (),
    heads: tuple[SetHead, ...] = (),
) -> Iterator[Settle]:
    """Burials of the same mail to try in turn, each with less in it, for a bus that refuses the one before.

    The bus refuses `records` and `heads` of a deleted conversation, and mail that is too large to be stored a second
    time. The arguments are those of `bury`.
    """
    yield bury(owner, mail, reason, attempts, records, leaving=leaving, heads=heads)
    if records or heads:
        yield bury(owner, mail, reason, attempts, leaving=leaving)
    short = replace(mail, payload={"left_out": f"too large to be kept here; see {mail.topic} {mail.seq}"})
    yield bury(owner, short, reason, attempts, leaving=leaving)


async def list_dead_letters(log: Log, agent: str, after: int | None = None) -> tuple[DeadLetter, ...]:
    """List one page of the dead letters that were neither retried nor dropped, oldest first."""
    topic = dead_topic(agent)
    if after is None:
        state = await log.describe(topic)
        after = state[0].floor
    page = await log.read(topic, after, DEAD_PAGE)
    return tuple(DeadLetter.parse(record) for record in page.records if not record.erased)


async def retry_dead_letter(log: Log, agent: str, seq: int, reports: tuple[NewRecord, ...] = ()) -> AppendResult:
    """Put the mail of a dead letter back into its inbox and remove the letter; `reports` are appended with it.

    The mail gets an id made of the letter's, so that a retry which was cut short before the removal delivers it once.
    """
    letter = await _find_dead_letter(log, agent, seq)
    appended = await log.append(Append(records=(_mail_again(letter), *reports)))
    await log.run(Erase(dead_topic(agent), (seq,)))
    return appended


def _mail_again(letter: DeadLetter) -> NewRecord:
    mail = letter.mail
    return NewRecord(
        str(mail["topic"]),
        mail["payload"],
        id=f"retry:{letter.seq}:{mail['id']}"[:ID_MAX_CHARS],
        headers={**mail["headers"], RETRY_OF: letter.seq},
    )


async def drop_dead_letter(log: Log, agent: str, seq: int) -> None:
    """Remove a dead letter without processing its mail."""
    await _find_dead_letter(log, agent, seq)
    await log.run(Erase(dead_topic(agent), (seq,)))


async def _find_dead_letter(log: Log, agent: str, seq: int) -> DeadLetter:
    topic = dead_topic(agent)
    page = await log.read(topic, before=seq + 1, limit=1)
    if not page.records or page.records[0].seq != seq or page.records[0].erased:
        raise UnknownCursor(f"agent {agent!r} has no dead letter {seq}; it may have been retried or dropped already")
    return DeadLetter.parse(page.records[0])


# --- many dead letters at once

DeadLetterAction: TypeAlias = Literal["retry", "drop"]


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Chooses dead letters. The conditions combine; without any, all letters are chosen."""

    agent: str | None = None
    since_ms: int | None = None  # buried at this time or later
    reason: str | None = None  # a text that the reason contains

    def chooses(self, letter: DeadLetter) -> bool:
        return (self.since_ms is None or letter.buried_ms >= self.since_ms) and (self.reason or "") in letter.reason

    def check_cursor(self, cursor: DeadLetterCursor | None) -> None:
        """Raise `InvalidInput` for a cursor of an agent that is not chosen."""
        if cursor is not None and self.agent not in (None, cursor.agent):
            raise InvalidInput(
                f"the cursor is of agent {cursor.agent!r}, not {self.agent!r}; use 'next' of the batch before"
            )


@dataclass(frozen=True, slots=True)
class DeadLetterCursor:
    """Where a batch has ended: in the letters of `agent` after `seq`.

    `last` is the last letter of the agent when its first batch began. Mail that is retried may fail again meanwhile.
    Without this bound, a retry of all letters would not end.
    """

    agent: str
    seq: int
    last: int

    def __str__(self) -> str:
        return f"{self.seq}-{self.last}-{self.agent}"

    @classmethod
    def parse(cls, text: str) -> Self:
        seq, _, rest = text.partition("-")
        last, _, agent = rest.partition("-")
        if not (seq.isdecimal() and last.isdecimal() and agent):
            raise InvalidInput(f"{text[:80]!r} is not a cursor of dead letters; use 'next' of the batch before")
        return cls(check_name(agent, "agent name"), int(seq), int(last))


@dataclass(frozen=True, slots=True)
class DeadLetterBatch:
    """The letters that a batch has chosen, those of them that the log refused to take, and where it has ended."""

    letters: tuple[DeadLetter, ...]
    refused: tuple[tuple[DeadLetter, str], ...]
    next: DeadLetterCursor | None


async def process_dead_letters(
    log: Log,
    action: DeadLetterAction,
    chosen: DeadLetterFilter,
    after: DeadLetterCursor | None = None,
    *,
    dry_run: bool = False,
) -> DeadLetterBatch:
    """Retry or drop a bounded number of the chosen letters. The next batch continues after `next`.

    A batch that was cut short can be run again: a letter is retried once. With `dry_run`, nothing is changed.
    Raises `InvalidInput` for a cursor of an agent that is not chosen.
    """
    chosen.check_cursor(after)
    found: list[DeadLetter] = []
    refused: list[tuple[DeadLetter, str]] = []
    agents = iter(await _agents_with_letters(log, chosen.agent, after))
    position = after if after is not None else await _first_position(log, agents)
    for _ in range(BATCH_PAGES_MAX):
        if position is None or len(found) >= DEAD_PAGE:
            break
        letters, following = await _read_chosen(log, position, chosen)
        faults = {} if dry_run else await _apply(log, action, dead_topic(position.agent), letters)
        found += [letter for letter in letters if letter.seq not in faults]
        refused += [(letter, faults[letter.seq]) for letter in letters if letter.seq in faults]
        position = following or await _first_position(log, agents)
    return DeadLetterBatch(tuple(found), tuple(refused), position)


async def _read_chosen(
    log: Log, position: DeadLetterCursor, chosen: DeadLetterFilter
) -> tuple[list[DeadLetter], DeadLetterCursor | None]:
    """Return the chosen letters of one page, and the position after it; `None` after the last page of the agent."""
    topic = dead_topic(position.agent)
    (state,) = await log.describe(topic)
    page = await log.read(topic, min(state.last, max(position.seq, state.floor)), DEAD_PAGE)
    records = [record for record in page.records if record.seq <= position.last]
    letters = [letter for letter in map(DeadLetter.parse, _kept(records)) if chosen.chooses(letter)]
    has_more = bool(records) and records[-1].seq < position.last
    return letters, replace(position, seq=records[-1].seq) if has_more else None


async def _agents_with_letters(log: Log, agent: str | None, after: DeadLetterCursor | None) -> list[str]:
    """The agents that a batch still has to begin with, in the order of their names."""
    if agent is not None:
        return [agent] if after is None else []
    names: list[str] = []
    before: tuple[int, str] | None = None
    while True:
        page = await log.topics(DEAD_PREFIX, before=before, limit=READ_LIMIT_MAX)
        names += [info.topic.removeprefix(DEAD_PREFIX) for info in page.topics]
        before = page.next
        if before is None:
            return sorted(name for name in names if after is None or name > after.agent)


async def _first_position(log: Log, agents: Iterator[str]) -> DeadLetterCursor | None:
    for agent in agents:
        (state,) = await log.describe(dead_topic(agent))
        if state.last > state.floor:
            return DeadLetterCursor(agent, state.floor, state.last)
    return None


def _kept(records: Iterable[Record]) -> Iterator[Record]:
    return (record for record in records if not record.erased)


async def _apply(log: Log, action: DeadLetterAction, topic: str, letters: list[DeadLetter]) -> dict[int, str]:
    """Retry or drop letters of one topic. Return what was refused, by seq."""
    faults: dict[int, str] = {}
    if action == "retry":
        for letter in letters:
            try:
                await log.append(Append(records=(_mail_again(letter),)))
            except (InvalidInput, Refused, TopicDeleted) as error:
                faults[letter.seq] = str(error)
    done = tuple(letter.seq for letter in letters if letter.seq not in faults)
    if done:
        await log.run(Erase(topic, done))
    return faults
