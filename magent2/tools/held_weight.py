"""How much may wait for one call or block: as much as one append can take."""

from __future__ import annotations

from dataclasses import dataclass, field

from magent2.bus.operations import Append, Condition

HELD_MAX_BYTES = 4 << 20  # of all that waits for one call or block
HELD_CONDITIONS_MAX = 240  # under which it may leave
HELD_RECORDS_MAX = 900


@dataclass(slots=True)
class HeldWeight:
    """How much of one append is used up by what waits."""

    size: int = 0
    records: int = 0
    conditions: dict[Condition, int] = field(default_factory=dict)  # how many sends have each

    def add(self, append: Append) -> str | None:
        """Count it in; or what there would be too much of, and it is not."""
        size = _size(append)
        more = sum(condition not in self.conditions for condition in append.conditions)
        if self.size + size > HELD_MAX_BYTES:
            return f"{HELD_MAX_BYTES} bytes"
        if self.records + len(append.records) > HELD_RECORDS_MAX:
            return f"{HELD_RECORDS_MAX} records"
        if len(self.conditions) + more > HELD_CONDITIONS_MAX:
            return f"to {HELD_CONDITIONS_MAX} conversations or so"
        self.size += size
        self.records += len(append.records)
        for condition in append.conditions:
            self.conditions[condition] = self.conditions.get(condition, 0) + 1
        return None

    def take(self, append: Append) -> None:
        self.size -= _size(append)
        self.records -= len(append.records)
        for condition in append.conditions:
            self.conditions[condition] -= 1
            if not self.conditions[condition]:
                del self.conditions[condition]


def _size(append: Append) -> int:
    return sum(len(record.body) for record in append.records)
