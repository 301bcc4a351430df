"""The Redis Functions of the engine: one library, built from `lua/`, and the commands that call and load it.

Functions are shared by all databases and users of a server. The names of the library and of its functions therefore
carry a digest of the source: several releases and prefixes use one server, each with the functions it was tested with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

from magent2.bus.operations import HEAD_MAX_BYTES
from magent2.errors import StorageError

IDS_KEPT = 10_000  # ids per topic that stay known after their records were removed
SORT_MAX = 256  # records per inbox that one claim sorts into lanes
SORT_PAGE = 32  # records that a claim reads at a time while it sorts
LANE_MEMORY_S = 86_400  # how long a lane without mail remembers which owner finished it
NOTIFICATION_MAX_BYTES = 32 << 10  # up to this size the records of an append travel in the notification
EXPIRED_MAX = 64  # expired workers that one claim ends
LEASES_SEEN = 64  # leases that a claim looks through for the next to expire
SCRUB_MEMORY_S = 600  # how long an unfinished copy of a stream is kept
TOPICS_PAGE = 256
TOPICS_SCAN = 8192  # topics of one kind that one call looks through

LIBRARY_PREFIX = "magent2_"
LIBRARIES_MAX = 16  # libraries of ours on one server; more are deleted when another one is loaded
DIGEST_CHARS = 16

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
_FILES = ("call", "topics", "records", "append", "lanes", "claim", "read", "retention", "transfer")
READ_ONLY = frozenset(
    ("describe", "dump_lanes", "dump_topics", "find", "lanes", "pending", "read", "topics", "workers")
)  # registered with `no-writes`
_LIBRARY_NAME = re.compile(rb"magent2_[0-9a-f]{16}")

R = TypeVar("R")
Argument: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Argument, ...]
Reply: TypeAlias = Any  # what the server answers: bytes, int, None, and lists of them

Exchange: TypeAlias = Generator[Command, Reply, R]
"""The dialogue of one operation with the server: yields commands, is sent their replies, returns the result."""


@dataclass(frozen=True, slots=True)
class FunctionLibrary:
    """A library of Redis Functions under a name that belongs to exactly this source."""

    name: str
    source: str

    @classmethod
    def build(cls, body: str) -> FunctionLibrary:
        """Name a library after its Lua source; the source reads its own name from `LIBRARY`."""
        name = LIBRARY_PREFIX + hashlib.sha256(body.encode()).hexdigest()[:DIGEST_CHARS]
        return cls(name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}")


@cache
def current_library() -> FunctionLibrary:
    """The library of this release: limits as constants, then the Lua files, each after those that it uses."""
    folder = files("magent2.bus.redis_engine").joinpath("lua")
    constants = (f"local {name} = {value}" for name, value in _CONSTANTS.items())
    parts = (folder.joinpath(f"{name}.lua").read_text() for name in _FILES)
    return FunctionLibrary.build("\n".join([*constants, *parts]))


def load_library(library: FunctionLibrary) -> Exchange[None]:
    """Load the library, and delete others of ours if there are too many.

    Servers keep functions across restarts, so every release would leave its library behind. Deleting one that another
    process still uses does no harm: the server then answers "Function not found" before anything has run, and that
    process loads it again. Without the rights to list or delete, the libraries stay (decision 0022).
    """
    yield ("FUNCTION", "LOAD", "REPLACE", library.source)
    try:
        found = yield ("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARY_PREFIX}*")
        names = [name for _, name, *_ in found if _LIBRARY_NAME.fullmatch(name)]
        for name in names if len(names) > LIBRARIES_MAX else ():
            if name.decode() != library.name:
                yield ("FUNCTION", "DELETE", name)
    except StorageError:
        return  # no right to do so, or another process deletes them at this moment
