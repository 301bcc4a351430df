"""The server-side scripts, from `redis_lua`: each with the parts it needs in front, known to the server by its hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

from magent2.bus.operations import HEAD_MAX_BYTES

IDS_KEPT = 10_000  # a generation of ids; between one and two of them are remembered per topic
SORT_MAX = 256  # records that a claim sorts per inbox
SORT_PAGE = 32  # … of which so many are looked at together
LANE_MEMORY_S = 86_400  # how long a lane without mail remembers who finished it
NEWS_MAX_BYTES = 4096  # a record up to this size travels in the notification
EXPIRED_MAX = 64  # workers that one claim ends
LEASES_SEEN = 64  # leases that a claim looks through for the next to run out
TOPICS_PAGE = 256
TOPICS_SCAN = 8192  # topics of one kind that one call looks through

_CONSTANTS = {
    "IDS_KEPT": IDS_KEPT,
    "SORT_MAX": SORT_MAX,
    "SORT_PAGE": SORT_PAGE,
    "LANE_MEMORY_MS": LANE_MEMORY_S * 1000,
    "NEWS_MAX_BYTES": NEWS_MAX_BYTES,
    "EXPIRED_MAX": EXPIRED_MAX,
    "LEASES_SEEN": LEASES_SEEN,
    "TOPICS_PAGE": TOPICS_PAGE,
    "TOPICS_SCAN": TOPICS_SCAN,
    "HEAD_MAX_BYTES": HEAD_MAX_BYTES,
}
_NEEDS = re.compile(r"^-- needs: (.*)$", re.MULTILINE)

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
    """Only the parts that a script names: each of them costs every run of it."""
    text = _text(name)
    needs = _NEEDS.search(text)
    parts = [_text("_" + part) for part in (needs[1].split() if needs else ())]
    whole = "\n".join([*parts, text])
    constants = [f"local {key} = {value}" for key, value in _CONSTANTS.items() if key in whole]
    return "\n".join([*constants, whole])


def _text(name: str) -> str:
    return files("magent2.bus").joinpath("redis_lua", f"{name}.lua").read_text()
