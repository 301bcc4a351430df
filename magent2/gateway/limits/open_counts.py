"""Counts of what is open (connections, streams), in one process or over all gateways of one address.

Gateways of one address share a file in memory. Each process writes its own row and reads those of the others, so they
need no lock, and the supervisor clears the row of a process that has ended.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from magent2.private_files import create_file

# A row counts keys in two tables of this many cells, by two hashes of the key (a count-min sketch). The smaller sum
# counts. A key is counted too high only if it shares both of its cells with keys that have many open. With the default
# limits at most 8 addresses and 50 users can have so many, so this happens to fewer than one key in a million.
KEY_TABLES, KEY_CELLS = 2, 1 << 16
ROW_CELLS = 1 + KEY_TABLES * KEY_CELLS  # the first cell has the total
CELL_BYTES = 4
SEED_BYTES = 16
KINDS = 2  # connections and streams
KEYS_CACHED = 4096


class OpenCounts:
    """How many are open in this process, in all and by key."""

    def __init__(self) -> None:
        self.own = 0
        self._by_key: Counter[str] = Counter()

    def add(self, key: str | None) -> None:
        """Count one more. Without a key it counts in the total only."""
        self.own += 1
        if key is not None:
            self._by_key[key] += 1

    def remove(self, key: str | None) -> None:
        self.own -= 1
        if key is not None:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]

    @property
    def total(self) -> int:
        return self.own

    def of(self, key: str) -> int:
        return self._by_key[key]


class SharedOpenCounts(OpenCounts):
    """How many are open over all processes of the table.

    A caller adds first and then compares the sums with its limits: of two processes that add the last one at the same
    moment, at least one sees both, so a limit is never exceeded. Both may see it and refuse.
    """

    def __init__(self, cells: memoryview, rows: int, row: int, seed: bytes) -> None:
        super().__init__()
        self._cells = cells
        self._starts = range(0, rows * ROW_CELLS, ROW_CELLS)
        self._start = self._starts[row]
        self._positions = lru_cache(maxsize=KEYS_CACHED)(_Positions(seed))

    def add(self, key: str | None) -> None:
        super().add(key)
        self._change(key, 1)

    def remove(self, key: str | None) -> None:
        super().remove(key)
        self._change(key, -1)

    def _change(self, key: str | None, by: int) -> None:
        self._cells[self._start] += by
        for position in self._positions(key) if key is not None else ():
            self._cells[self._start + position] += by

    @property
    def total(self) -> int:
        return sum(self._cells[start] for start in self._starts)

    def of(self, key: str) -> int:
        return min(sum(self._cells[start + position] for start in self._starts) for position in self._positions(key))


@dataclass(frozen=True, slots=True)
class _Positions:
    """The cells of a key in a row. Clients do not know the seed, so they cannot choose keys that share cells."""

    seed: bytes

    def __call__(self, key: str) -> tuple[int, ...]:
        digest = blake2b(key.encode(), digest_size=4 * KEY_TABLES, key=self.seed).digest()
        return tuple(
            1 + table * KEY_CELLS + int.from_bytes(digest[4 * table : 4 * table + 4], "big") % KEY_CELLS
            for table in range(KEY_TABLES)
        )


@dataclass(frozen=True, slots=True)
class LimitShare:
    """The part of one process in the limits of an address. `gateways` is the number of processes that serve it."""

    gateways: int = 1
    connections: OpenCounts = field(default_factory=OpenCounts)
    streams: OpenCounts = field(default_factory=OpenCounts)


class CountsFile:
    """The file with one row of counts for each gateway of an address."""

    def __init__(self, path: Path, gateways: int) -> None:
        self._gateways = gateways
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(handle, 0)
        finally:
            os.close(handle)
        self._seed = self._map[:SEED_BYTES]
        self._cells = memoryview(self._map)[SEED_BYTES:].cast("I")

    @classmethod
    def create(cls, path: Path, gateways: int) -> CountsFile:
        handle = create_file(path, shared=False)
        try:
            # Written in full: a process that wrote into a hole of the file on a full disk would be killed.
            os.write(handle, secrets.token_bytes(SEED_BYTES) + bytes(KINDS * gateways * ROW_CELLS * CELL_BYTES))
        finally:
            os.close(handle)
        return cls(path, gateways)

    def share(self, row: int) -> LimitShare:
        """Return the counts of the process that writes this row."""
        connections, streams = (SharedOpenCounts(kind, self._gateways, row, self._seed) for kind in self._kinds())
        return LimitShare(self._gateways, connections, streams)

    def clear(self, row: int) -> None:
        """Forget the counts of a process that has ended: the system has closed what it had open."""
        for kind in self._kinds():
            kind[row * ROW_CELLS : (row + 1) * ROW_CELLS] = memoryview(bytes(ROW_CELLS * CELL_BYTES)).cast("I")

    def _kinds(self) -> Iterator[memoryview]:
        size = self._gateways * ROW_CELLS
        return (self._cells[kind * size : (kind + 1) * size] for kind in range(KINDS))
