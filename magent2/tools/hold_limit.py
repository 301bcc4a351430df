"""How much may wait for one call or block: as much as one append can take."""

from __future__ import annotations

from dataclasses import dataclass, field

from magent2.bus.operations import Append

HELD_MAX_BYTES = 4 << 20  # of all that waits for one call or block
HELD_CONDITIONS_MAX = 240  # under which it may leave
HELD_RECORDS_MAX = 900


@dataclass(slots=True)
class HoldBudget:
    """How much of one append is used up by what waits."""

    size: int = 0
    records: int = 0
    conditions: int = 0  # those that several sends have in common counted each time
    appends: list[Append] = field(default_factory=list)

    def add(self, append: Append, bytes_: int) -> str | None:
        """Count it in; or what there would be too much of, and it is not."""
        size = self.size + bytes_
        if size > HELD_MAX_BYTES:
            return f"{HELD_MAX_BYTES} bytes"
        records = self.records + len(append.records)
        if records > HELD_RECORDS_MAX:
            return f"{HELD_RECORDS_MAX} records"
        conditions = self.conditions + len(append.conditions)
        if conditions > HELD_CONDITIONS_MAX and self._different_with(append) > HELD_CONDITIONS_MAX:
            return f"to {HELD_CONDITIONS_MAX} conversations or so"
        self.size, self.records, self.conditions = size, records, conditions
        self.appends.append(append)
        return None

    def take(self, append: Append, bytes_: int) -> None:
        self.size -= bytes_
        self.records -= len(append.records)
        self.conditions -= len(append.conditions)
        self.appends.remove(append)

    def _different_with(self, append: Append) -> int:
        """How many conditions there would be; looked at only when there may be too many."""
        return len({condition for held in (*self.appends, append) for condition in held.conditions})
