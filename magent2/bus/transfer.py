"""Export and import of a whole log, as a file with one JSON object per line.

The last line has the number of rows and the sha256 of all lines before it, so that a truncated file is detected.
On Redis an export is consistent per topic, but not a snapshot of the whole log; stop all writers if that matters.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import orjson

from magent2.bus.interface import Engine
from magent2.bus.operations import Dump, DumpRow, Load
from magent2.errors import InvalidInput, StorageUnwritable
from magent2.models.json_types import JsonObject
from magent2.private_files import create_file, sync

FORMAT = 1
LOAD_ROWS = 500
LOAD_BYTES = 8 << 20  # size of the lines in one chunk, which bounds the size of a request


@dataclass(frozen=True, slots=True)
class TransferResult:
    """Number of rows in an export, and their checksum."""

    rows: int
    sha256: str


@runtime_checkable
class HasBackup(Protocol):
    """An engine that can write a backup in its own file format."""

    def backup(self, path: Path) -> None: ...


def backup(bus: Engine, path: Path) -> None:
    """Write a backup: a file in the engine's own format if it has one, otherwise an export."""
    if isinstance(bus, HasBackup):
        bus.backup(path)
    else:
        export_log(bus, path)


def export_log(bus: Engine, path: Path) -> TransferResult:
    """Export the whole log. The file gets its name only when it is complete, and is on disk when this returns."""
    if path.exists():
        raise StorageUnwritable(f"{path} exists already; choose another name or move it away")
    partial = path.with_name(path.name + ".partial")
    digest = hashlib.sha256()
    rows = 0
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(create_file(partial), "wb") as file:
            for row in _dump_all(bus):
                line = orjson.dumps(row) + b"\n"
                digest.update(line)
                file.write(line)
                rows += 1
            end = {"kind": "end", "format": FORMAT, "rows": rows, "sha256": digest.hexdigest()}
            file.write(orjson.dumps(end) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        raise StorageUnwritable(f"cannot write {path}: {error.strerror}; choose another place") from error
    finally:
        partial.unlink(missing_ok=True)
    return TransferResult(rows, digest.hexdigest())


def _dump_all(bus: Engine) -> Iterator[DumpRow]:
    cursor: str | None = ""
    while cursor is not None:
        rows, cursor = bus.call(Dump(cursor))
        yield from rows


def import_log(bus: Engine, path: Path) -> TransferResult:
    """Import an export into an empty log. The whole file is verified before the first row is written."""
    found = check_export(path)
    first = True
    for chunk in _chunks(path):
        bus.call(Load(chunk, first=first))
        first = False
    return found


def check_export(path: Path) -> TransferResult:
    """Verify an export against its last line and return what that line says."""
    digest = hashlib.sha256()
    rows = 0
    last = b""
    for line in _lines(path):
        if last:
            digest.update(last)
            rows += 1
        last = line
    end = _end_line(path, last)
    if end.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} has format {end.get('format')!r}, this release reads {FORMAT}; use the release that wrote it"
        )
    if (end.get("rows"), end.get("sha256")) != (rows, digest.hexdigest()):
        raise InvalidInput(f"{path} was changed or cut short after the export; export again")
    return TransferResult(rows, digest.hexdigest())


def _end_line(path: Path, line: bytes) -> JsonObject:
    try:
        end = orjson.loads(line)
    except orjson.JSONDecodeError:
        end = None
    if not isinstance(end, dict) or end.get("kind") != "end":
        raise InvalidInput(f"{path} is not a complete export: its last line is missing; export again")
    return end


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}; name a file that 'magent2 export' wrote") from error


def _chunks(path: Path) -> Iterator[tuple[DumpRow, ...]]:
    rows: list[DumpRow] = []
    size = 0
    for line in _lines(path):
        row = orjson.loads(line)
        if row["kind"] == "end":
            break
        if rows and (len(rows) == LOAD_ROWS or size + len(line) > LOAD_BYTES):
            yield tuple(rows)
            rows, size = [], 0
        rows.append(row)
        size += len(line)
    if rows:
        yield tuple(rows)
