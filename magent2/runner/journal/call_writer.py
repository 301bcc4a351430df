"""The call writer of a journalled run: messages that cannot wait, and the record that a tool was begun."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import cast

from magent2.bus.operations import Append, SetHead
from magent2.errors import OutcomeUnknown
from magent2.runner.journal.journal import Journal
from magent2.sessions.history import BegunRecord, SendFacts, SentRecord


class JournalCallWriter:
    """Writes for one tool call through the journal of its run."""

    def __init__(self, journal: Journal, turn: int, call_id: str) -> None:
        self._journal = journal
        self._turn = turn
        self._call_id = call_id
        self._begun = 0  # tools that must not be run twice, so far

    def earlier_send(self, position: int) -> SentRecord | None:
        return self._journal.sent.get((self._turn, self._call_id, position))

    def earlier_positions(self) -> frozenset[int]:
        own = (self._turn, self._call_id)
        return frozenset(position for *call, position in self._journal.sent if tuple(call) == own)

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        return self._journal.leaving

    async def send_now(self, position: int, facts: SendFacts, append: Append) -> None:
        record = self._journal.context.key.sent(self._turn, self._call_id, position, facts)
        records = (record, *append.records)
        await self._journal.commit(*records, heads=append.heads, conditions=append.conditions)
        self._journal.sent[self._turn, self._call_id, position] = cast(SentRecord, record.payload)

    async def begin_once(self, tool: str, digest: str) -> None:
        key = self._turn, self._call_id, self._begun
        self._begun += 1
        if key in self._journal.begun:
            raise OutcomeUnknown(
                f"{tool} was begun before a crash, and whether it was done is unknown;"
                " it is not run again: find out, then go on"
            )
        record = self._journal.context.key.begun(*key, tool, digest)
        await self._journal.commit(record)
        self._journal.begun[key] = cast(BegunRecord, record.payload)

    async def set_head(self, head: SetHead) -> None:
        await self._journal.put(heads=(head,))
