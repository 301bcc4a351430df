"""The server-side scripts, from `lua/`: each with the shared parts it uses, known to the server by its hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

from magent2.bus.operations import HEAD_MAX_BYTES

IDS_KEPT = 10_000  # ids per topic that are remembered beyond their records
SORT_MAX = 256  # records that a claim sorts per inbox
SORT_PAGE = 32  # … of which so many are looked at together
LANE_MEMORY_S = 86_400  # how long a lane without mail remembers who finished it
NOTIFICATION_MAX_BYTES = 32 << 10  # records of one append up to this size travel in the notification
EXPIRED_MAX = 64  # workers that one claim ends
LEASES_SEEN = 64  # leases that a claim looks through for the next to run out
SCRUB_MEMORY_S = 600  # how long a half-made copy of a stream outlives whoever was making it
TOPICS_PAGE = 256
TOPICS_SCAN = 8192  # topics of one kind that one call looks through

_CONSTANTS = {
    "IDS_KEPT": IDS_KEPT,
    "SORT_MAX": SORT_MAX,
    "SORT_PAGE": SORT_PAGE,
    "LANE_MEMORY_MS": LANE_MEMORY_S * 1000,
    "NOTIFICATION_MAX_BYTES": NOTIFICATION_MAX_BYTES,
    "EXPIRED_MAX": EXPIRED_MAX,
    "LEASES_SEEN": LEASES_SEEN,
    "SCRUB_MEMORY_MS": SCRUB_MEMORY_S * 1000,
    "TOPICS_PAGE": TOPICS_PAGE,
    "TOPICS_SCAN": TOPICS_SCAN,
    "HEAD_MAX_BYTES": HEAD_MAX_BYTES,
}
_LIBRARIES = (
    *("base", "ids", "topics", "describe", "records", "blobs", "drafts", "heads"),
    *("entries", "append", "lanes", "mail", "owner"),
)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_PART = re.compile(r"^(?=local )", re.MULTILINE)
_NAME = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD = re.compile(r"\w+")

R = TypeVar("R")
Command: TypeAlias = tuple[str | bytes | int, ...]
Reply: TypeAlias = Any  # what the server says: bytes, int, None, and lists of them

Exchange: TypeAlias = Generator[Command, Reply, R]
"""What an operation says to the server: yields commands, is sent their replies, returns the result."""


@dataclass(frozen=True, slots=True)
class Script:
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    source = _assemble(name)
    found = Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
    _BY_SHA[found.sha] = found
    return found


_BY_SHA: dict[str, Script] = {}


def script_of(command: Command) -> Script:
    """The script that an `EVALSHA` command runs."""
    return _BY_SHA[str(command[1])]


def run(name: str, prefix: str, *arguments: str | bytes | int) -> Command:
    return ("EVALSHA", script(name).sha, 0, prefix, *arguments)


def _assemble(name: str) -> str:
    """Only the shared functions that a script uses: each one costs every run of it."""
    text = _text(name)
    shared = _shared()
    words, wanted = set(_WORD.findall(text)), set[str]()
    while new := {part for part in shared if part in words and part not in wanted}:
        wanted |= new
        words |= {word for part in new for word in _WORD.findall(shared[part])}
    parts = [*(source for part, source in shared.items() if part in wanted), text]
    constants = [f"local {key} = {value}" for key, value in _CONSTANTS.items() if key in words]
    return "\n".join([*constants, *parts])


@cache
def _shared() -> dict[str, str]:
    """Functions and constants that scripts share, in an order in which each knows those before it."""
    parts = (part for library in _LIBRARIES for part in _PART.split(_text(f"_{library}")) if part.strip())
    return {_NAME.findall(part)[0]: part.rstrip() for part in parts}


def _text(name: str) -> str:
    source = files("magent2.bus.redis_engine").joinpath("lua", f"{name}.lua").read_text()
    return _COMMENT.sub("", source)
