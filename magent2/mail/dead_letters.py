"""Dead letters: mail that could not be processed, kept in `dead:{agent}` until it is retried or dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from magent2.bus.log import Log
from magent2.bus.operations import Append, Erase, SetHead, Settle
from magent2.bus.records import ID_MAX_CHARS, AppendResult, MailRef, NewRecord, Owner, Record
from magent2.errors import UnknownCursor
from magent2.models.address import dead_topic
from magent2.models.json_types import JsonMapping

DEAD_PAGE = 100
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
    mail = letter.mail
    again = NewRecord(
        str(mail["topic"]),
        mail["payload"],
        id=f"retry:{seq}:{mail['id']}"[:ID_MAX_CHARS],
        headers={**mail["headers"], RETRY_OF: seq},
    )
    appended = await log.append(Append(records=(again, *reports)))
    await log.run(Erase(dead_topic(agent), (seq,)))
    return appended


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
