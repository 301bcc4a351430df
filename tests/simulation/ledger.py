"""Stands before the engine of a simulated world and writes down what was done to its lanes, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, Later, Operation, OwnedAppend, Settle, Write
from magent2.bus.records import Appended, Claims, MailRef, Owner
from magent2.errors import Fenced
from tests.support.broken import Broken

Lane = tuple[str, str]


class Ledger(Broken):
    """Passes everything on. Knows who holds each lane by what claims have answered, whatever the engine believes."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        super().__init__(engine)
        self.counts: Counter[str] = Counter()
        self.trespasses: list[str] = []
        self.settled: Counter[MailRef] = Counter()
        self.trace: list[str] = []
        self._now = now
        self._holders: dict[Lane, Owner] = {}

    def answer(self, operation: Operation[Any]) -> Any:
        try:
            answer = self.inner.call(operation)
        except Exception as error:
            self._write(operation, type(error).__name__)
            self.counts["fenced"] += isinstance(error, Fenced) and isinstance(operation, Write)
            raise
        self._write(operation, "")
        if isinstance(operation, Claim):
            self._note_claims(answer)
        elif isinstance(operation, Append):
            self.counts["repeated"] += answer.repeat and operation.records[0].topic.startswith("chat:")
        elif isinstance(operation, OwnedAppend | Settle | Later):
            self._note_write(operation, answer)
        return answer

    def _write(self, operation: Operation[Any], outcome: str) -> None:
        who = getattr(operation, "worker", None) or getattr(getattr(operation, "owner", None), "worker", "")
        records = len(getattr(operation, "records", ()))
        self.trace.append(f"{self._now():.6f} {who} {type(operation).__name__} {records} {outcome}")

    def _note_claims(self, claims: Claims) -> None:
        for claimed in claims.lanes:
            lane = claimed.owner.agent, claimed.owner.conversation
            before = self._holders.get(lane)
            self.counts["taken over"] += before is not None and before.worker != claimed.owner.worker
            self._holders[lane] = claimed.owner

    def _note_write(self, operation: OwnedAppend | Settle | Later, answer: Appended) -> None:
        """A repeat changes nothing, and is anybody's right."""
        if answer.repeat:
            self.counts["reply was lost"] += 1
            return
        lane = operation.owner.agent, operation.owner.conversation
        holder = self._holders.get(lane)
        if holder is None or holder.token != operation.owner.token:
            what = type(operation).__name__
            self.trespasses.append(f"{operation.owner.worker} wrote ({what}) for lane {lane}, which was not its own")
        if isinstance(operation, OwnedAppend):
            self.settled.update(operation.mail)
            return
        self._holders.pop(lane, None)
        if isinstance(operation, Settle):
            self.settled.update(operation.mail)
        else:
            self.counts["retried"] += not operation.refund
