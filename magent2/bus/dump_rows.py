"""Rows of a dump, as every engine reads them at an import."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import TypeVar

from magent2.bus.operations import DUMP_SCHEMA, DumpRow
from magent2.bus.records import NewRecord
from magent2.errors import InvalidInput, SchemaTooNew

W = TypeVar("W")


def parse_row(row: DumpRow, parsers: Mapping[str, Callable[[DumpRow], W]]) -> W:
    """Return what the parser of this kind of row makes of it. Raises `InvalidInput` for a row that is damaged."""
    kind = row.get("kind")
    parser = parsers.get(str(kind))
    if parser is None:
        raise InvalidInput(f"a row of kind {kind!r} is not part of a dump")
    try:
        return parser(row)
    except (KeyError, TypeError, binascii.Error) as error:
        raise InvalidInput(
            f"a row of kind {kind!r} is damaged ({type(error).__name__}: {error}); dump again"
        ) from error


def log_id_of(row: DumpRow) -> str:
    """Return the id of the log. Raises `SchemaTooNew` if this release does not know the format of the dump."""
    if int(row["schema"]) > DUMP_SCHEMA:
        raise SchemaTooNew(f"the dump has schema {row['schema']}, this release knows {DUMP_SCHEMA}; upgrade magent2")
    return str(row["log_id"])


def record_of(row: DumpRow) -> NewRecord:
    """Return the record of a row. An erased one has an empty payload."""
    return NewRecord(
        str(row["topic"]),
        row["payload"] or {},
        row["id"],
        row["headers"],
        row["draft"],
        row["closes"],
        tuple(row["blobs"]),
    )
