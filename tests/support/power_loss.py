"""Build the files that a power failure may leave, from a record of what was written and synced before it.

What is assumed of the disk and of the file system:
- A sync that has returned has made all earlier writes to that file durable, or all earlier entries of that folder.
- Everything else may be there or not, in any combination: each sector of each write, each truncation, each directory
  entry. A sector has 512 bytes and is written completely or not at all. A file that was being extended may have its new
  size with any content.
- What was synced stays as it is. In particular, a write does not damage neighbouring bytes that it does not contain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from tests.support.disk_record import (
    Created,
    DiskRecord,
    Event,
    FileSynced,
    FolderSynced,
    Noted,
    Removed,
    Renamed,
    Truncated,
    Written,
    resize,
    write_into,
)

SECTOR_BYTES = 512
INDEX_BYTES = 32_768  # of an index of the write-ahead log, which is left with any content

Image: TypeAlias = dict[str, bytes | None]  # path → content; `None` for a folder


class Survival:
    """Which of the changes that were not synced have reached the disk. This one: all of them."""

    name = "kept"

    def sectors(self, count: int) -> Sequence[bool]:
        """For each sector of the next write to a file, in order."""
        return [True] * count

    def change(self) -> bool:
        """For the next truncation."""
        return True

    def entry(self) -> bool:
        """For the next directory entry."""
        return True

    def filling(self, size: int) -> bytes | None:
        """Return the content of bytes in a file that was extended, if its new size has reached the disk."""
        return None


class Dropped(Survival):
    name = "dropped"

    def sectors(self, count: int) -> Sequence[bool]:
        return [False] * count

    def change(self) -> bool:
        return False

    def entry(self) -> bool:
        return False


class ContentOnly(Survival):
    name = "without directory entries"

    def entry(self) -> bool:
        return False


class EntriesOnly(Dropped):
    name = "directory entries only"

    def entry(self) -> bool:
        return True


class CutShort(Survival):
    """The disk has worked in order and stopped inside a write."""

    name = "cut short"

    def __init__(self, numbers: random.Random, sectors: int) -> None:
        self._left = numbers.randint(0, sectors)
        self._entry = numbers.random() < 0.5

    def sectors(self, count: int) -> Sequence[bool]:
        kept = min(count, self._left)
        self._left -= kept
        return [True] * kept + [False] * (count - kept)

    def change(self) -> bool:
        return self._left > 0

    def entry(self) -> bool:
        return self._entry


class Reordered(Survival):
    """Each sector and each entry by chance, some of them likely and some unlikely."""

    name = "reordered"

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self._share = numbers.choice([0.1, 0.5, 0.9])

    def sectors(self, count: int) -> Sequence[bool]:
        return [self._numbers.random() < self._share for _ in range(count)]

    def change(self) -> bool:
        return self._numbers.random() < self._share

    def entry(self) -> bool:
        return self._numbers.random() < self._share


class WholeWrites(Reordered):
    """Each write completely or not at all, by chance."""

    name = "reordered whole writes"

    def sectors(self, count: int) -> Sequence[bool]:
        return [self.change()] * count


class Garbage(Reordered):
    """Like `Reordered`; files have their new size, with any content where nothing was written."""

    name = "reordered, with garbage"

    def filling(self, size: int) -> bytes | None:
        return self._numbers.randbytes(size)


@dataclass
class FileOnDisk:
    """What is durable of a file, and the changes since its last sync."""

    durable: bytearray
    pending: list[Written | Truncated] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            if isinstance(change, Written):
                write_into(self.durable, change.offset, change.data)
            else:
                resize(self.durable, change.size)
        self.pending.clear()

    def sectors(self) -> int:
        return sum(len(_sectors(change)) for change in self.pending if isinstance(change, Written))

    def after(self, survival: Survival) -> bytes:
        content = bytearray(self.durable)
        for change in self.pending:
            if isinstance(change, Truncated):
                if survival.change():
                    resize(content, change.size)
                continue
            pieces = _sectors(change)
            for (start, end), kept in zip(pieces, survival.sectors(len(pieces)), strict=True):
                piece = change.data[start - change.offset : end - change.offset]
                if kept:
                    write_into(content, start, piece)
                elif end > len(content) and (filling := survival.filling(end - max(start, len(content)))) is not None:
                    write_into(content, max(start, len(content)), filling)
        return bytes(content)


def _sectors(change: Written) -> list[tuple[int, int]]:
    """Return the parts of a write by sector, as offsets in the file."""
    start, end = change.offset, change.offset + len(change.data)
    bounds = [start, *range((start // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
    return list(pairwise(bounds)) if end > start else []


class Disk:
    """The disk at one moment of a record: what is durable, and what was changed since."""

    def __init__(self, record: DiskRecord) -> None:
        self._files = {number: FileOnDisk(bytearray(data)) for number, data in record.files_at_start.values()}
        self._entries = {name: number for name, (number, _) in record.files_at_start.items()}
        self._entries.update(dict.fromkeys(record.folders_at_start, 0))
        self._pending: list[tuple[Created | Renamed | Removed, int]] = []  # with the number of the file
        self._current = dict(self._entries)

    def apply(self, event: Event) -> None:
        match event:
            case Created(path, file):
                if file and file not in self._files:
                    self._files[file] = FileOnDisk(bytearray())
                self._current[path] = file
                self._pending.append((event, file))
            case Renamed(path, target):
                self._current[target] = self._current.pop(path)
                self._pending.append((event, self._current[target]))
            case Removed(path):
                self._pending.append((event, self._current.pop(path)))
            case Written(file) | Truncated(file):
                self._files[file].pending.append(event)
            case FileSynced(file):
                self._files[file].sync()
            case FolderSynced(path):
                self._sync_folder(path)
            case Noted():
                pass

    def _sync_folder(self, path: str) -> None:
        left = [(event, number) for event, number in self._pending if _folder_of(event.path) != path]
        for event, number in self._pending:
            if _folder_of(event.path) == path:
                _change(self._entries, event, number)
        self._pending = left

    def after(self, survival: Survival) -> Image:
        """Return the files and folders that a power failure leaves now."""
        entries = dict(self._entries)
        for event, number in self._pending:
            if survival.entry():
                _change(entries, event, number)
        contents = {number: self._files[number].after(survival) for number in sorted(set(entries.values()) - {0})}
        image: Image = {}
        for name, number in sorted(entries.items()):
            if all(str(parent) in entries for parent in list(Path(name).parents)[:-1]):
                image[name] = contents[number] if number else None
        return image

    def sectors(self) -> int:
        """Return the number of sectors that were written and not synced."""
        return sum(file.sectors() for file in self._files.values())

    def is_synced(self) -> bool:
        return not self._pending and not any(file.pending for file in self._files.values())


def _folder_of(path: str) -> str:
    return str(Path(path).parent)


def _change(entries: dict[str, int], event: Created | Renamed | Removed, number: int) -> None:
    if isinstance(event, Renamed):
        entries[event.target] = number
        entries.pop(event.path, None)
    elif isinstance(event, Created):
        entries[event.path] = number
    elif entries.get(event.path) == number:
        del entries[event.path]


def survivals(disk: Disk, seed: str, chances: int) -> Iterator[Survival]:
    """Yield what may survive of the changes that were not synced: five simple cases, then `chances` of each by chance.

    A disk on which everything is synced has one case only.
    """
    yield Survival()
    if disk.is_synced():
        return
    yield from (Dropped(), ContentOnly(), EntriesOnly())
    for chance in range(chances):
        numbers = random.Random(f"{seed}/{chance}")
        yield CutShort(numbers, disk.sectors())
        yield Reordered(numbers)
        yield WholeWrites(numbers)
        yield Garbage(numbers)


def write_image(image: Image, folder: Path) -> None:
    """Write the files of a power failure into an empty folder, with an index of the write-ahead log that is garbage."""
    for name, content in image.items():
        path = folder / name
        if content is None:
            path.mkdir()
            continue
        _write_file(path, content)
        if name.endswith("-wal"):
            _write_file(path.with_name(path.name.removesuffix("-wal") + "-shm"), b"\xa5" * INDEX_BYTES)


def _write_file(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
