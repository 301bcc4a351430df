"""The functions on the server that do the work of the engine, from the SQL files of this package.

Their names end with a number made from their text. So releases with different functions work on one log at the same
time, each with its own.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from magent2.bus.operations import (
    CLAIM_MAIL_MAX,
    HEAD_MAX_BYTES,
    IDLE_LANES_DROPPED_MAX,
    IDS_KEPT,
    INTAKE_MAX,
    LANE_MEMORY_S,
)

CLOCK_JUMP_MS = 60_000  # a larger difference between two clocks means that one was set (decision 28)
CLOCK_STORE_MS = 1000  # how often the log clock is stored

_LIMITS = {
    "claim_mail_max": CLAIM_MAIL_MAX,
    "head_max_bytes": HEAD_MAX_BYTES,
    "ids_kept": IDS_KEPT,
    "intake_max": INTAKE_MAX,
    "lane_memory_ms": LANE_MEMORY_S * 1000,
    "clock_jump_ms": CLOCK_JUMP_MS,
    "clock_store_ms": CLOCK_STORE_MS,
    "idle_lanes_dropped_max": IDLE_LANES_DROPPED_MAX,
}
_PLACEHOLDER = re.compile(r"\$([a-z_]+)")


def _read(name: str) -> str:
    return (files(__package__) / "sql" / name).read_text(encoding="utf-8")


TABLES = _read("tables.sql")
_TEXT = "\n".join(_read(name) for name in ("lanes.sql", "write.sql", "maintenance.sql"))
VERSION = hashlib.blake2b(f"{_TEXT}{_LIMITS}".encode(), digest_size=4).hexdigest()


def render(sql: str) -> str:
    """Fill in the limits, and the ending of function names for `$v`."""
    values = {"v": f"_{VERSION}", **_LIMITS}
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), sql)


FUNCTIONS = render(_TEXT)
FUNCTION_NAMES = tuple(re.findall(r"^CREATE OR REPLACE FUNCTION (\w+)", FUNCTIONS, re.MULTILINE))
