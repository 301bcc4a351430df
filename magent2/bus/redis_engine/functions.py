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

from magent2.bus.operations import HEAD_MAX_BYTES, IDS_KEPT, INTAKE_MAX, LANE_MEMORY_S
from magent2.bus.scrub import SCRUB_TIME_SHARE
from magent2.errors import StorageError
from magent2.models.address import EPOCH_TOPIC, SUBAGENT_SEPARATOR

SORT_PAGE = 32  # records that a claim reads at a time while it sorts
NOTIFICATION_MAX_BYTES = 32 << 10  # up to this size the records of an append travel in the notification
LEASES_SEEN = 64  # leases that a claim looks through: it ends expired ones and finds the next to expire
CLOCK_JUMP_S = 60  # the server's clock was set if it differs more from a worker's; longer than a command is retried
GARBAGE_MIN = 256  # dropped pieces of drafts after which a stream is copied to free their memory
SCRUB_LEASE_S = 10  # another process takes over a scrub that has not continued for this long
TOPICS_PAGE = 256
TOPICS_SCAN = 8192  # topics of one kind that one call looks through

SCHEMA_WITH_EPOCHS = 4  # of a log whose numbers have jumped: older releases do not know that

LIBRARY_PREFIX = "magent2_"
LIBRARIES_MAX = 16  # libraries of ours on one server; more are deleted when another one is loaded
DIGEST_CHARS = 16

_CONSTANTS: dict[str, int | str] = {
    "IDS_KEPT": IDS_KEPT,
    "INTAKE_MAX": INTAKE_MAX,
    "SORT_PAGE": SORT_PAGE,
    "LANE_MEMORY_MS": f"'{LANE_MEMORY_S * 1000}'",
    "NOTIFICATION_MAX_BYTES": NOTIFICATION_MAX_BYTES,
    "LEASES_SEEN": LEASES_SEEN,
    "CLOCK_JUMP_MS": CLOCK_JUMP_S * 1000,
    "GARBAGE_MIN": GARBAGE_MIN,
    "SCRUB_LEASE_MS": SCRUB_LEASE_S * 1000,
    "SCRUB_TIME_SHARE": SCRUB_TIME_SHARE,
    "TOPICS_PAGE": TOPICS_PAGE,
    "TOPICS_SCAN": TOPICS_SCAN,
    "HEAD_MAX_BYTES": HEAD_MAX_BYTES,
    "EPOCH_TOPIC": f"'{EPOCH_TOPIC}'",
    "SCHEMA_WITH_EPOCHS": SCHEMA_WITH_EPOCHS,
    "NAME_SEPARATORS": f"'[:{SUBAGENT_SEPARATOR}]'",
}
_SHARED_FILES = ("call", "topics", "records", "append", "lanes")  # each after those that it uses
_OTHER_FILES = ("claim", "epoch", "read", "retention", "transfer")  # use the shared ones, and not each other
READ_ONLY = frozenset(
    ("describe", "dump_lanes", "dump_topics", "find", "lanes", "pending", "read", "scrub_state", "topics", "workers")
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
    """The library of this release: limits as constants, then the Lua files.

    Files that no other file uses are blocks, because Lua allows 200 local names in one block and those around it.
    """
    folder = files("magent2.bus.redis_engine").joinpath("lua")
    constants = (f"local {name} = {value}" for name, value in _CONSTANTS.items())
    shared = (folder.joinpath(f"{name}.lua").read_text() for name in _SHARED_FILES)
    others = (f"do\n{folder.joinpath(f'{name}.lua').read_text()}end" for name in _OTHER_FILES)
    return FunctionLibrary.build("\n".join([*constants, *shared, *others]))


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
