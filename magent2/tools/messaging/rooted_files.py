"""Read files below a folder and nothing else.

Each step of a path is opened relative to the step before it, without following links. A link or a rename between a
check and the read can therefore not lead outside the folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote

from magent2.errors import InvalidInput

FILE_MAX_BYTES = 8 << 20
PATH_MAX_CHARS = 1000
STEPS_MAX = 32

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def folder_of(root: Path, agent: str) -> Path:
    """The folder of an agent. Its name is quoted, so that it is always a single path step."""
    name = quote(agent, safe=" @+")
    return root / (name.replace(".", "%2E") if set(name) <= {"."} else name)


def read_beneath(folder: Path, path: str) -> tuple[str, bytes]:
    """Return name and content of a regular file; `InvalidInput` says what is wrong with the path."""
    steps = _steps(path)
    try:
        where = os.open(folder, _FOLDER)
    except OSError as error:
        raise InvalidInput(f"you have no folder to send files from ({error.strerror})") from error
    try:
        for step in steps[:-1]:
            inner = os.open(step, _FOLDER, dir_fd=where)
            os.close(where)
            where = inner
        return steps[-1], _content(os.open(steps[-1], _FILE, dir_fd=where), path)
    except OSError as error:
        raise InvalidInput(f"{path[:80]!r} cannot be sent: {_reason(error)}") from error
    finally:
        os.close(where)


def _steps(path: str) -> list[str]:
    if not path or len(path) > PATH_MAX_CHARS or not path.isprintable():
        raise InvalidInput(f"a path has 1 to {PATH_MAX_CHARS} printable characters")
    if path.startswith(("/", "~")) or "\\" in path:
        raise InvalidInput(f"{path[:80]!r} is not a path below your folder; use a relative path with '/'")
    steps = path.split("/")
    if any(step in ("", ".", "..") for step in steps) or len(steps) > STEPS_MAX:
        raise InvalidInput(f"{path[:80]!r} is not a plain path below your folder; name folders and a file")
    return steps


def _content(file: int, path: str) -> bytes:
    with os.fdopen(file, "rb") as opened:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidInput(f"{path[:80]!r} is not a file")
        if facts.st_nlink != 1:
            raise InvalidInput(f"{path[:80]!r} has other hard links, and may belong to another user; copy it first")
        data = opened.read(FILE_MAX_BYTES + 1)
    if not data:
        raise InvalidInput(f"{path[:80]!r} is empty")
    if len(data) > FILE_MAX_BYTES:
        raise InvalidInput(f"{path[:80]!r} is larger than {FILE_MAX_BYTES} bytes; send a smaller file")
    return data


def _reason(error: OSError) -> str:
    """Why a step cannot be opened. A link gives `ELOOP` or `ENOTDIR`; the text does not say where it points."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "it cannot be read"
    return "a step of the path is a link or not a folder"
