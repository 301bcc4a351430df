"""Files that a client uploads: where their bytes come from, read piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from magent2.errors import InvalidInput

PIECE_BYTES = 64 << 10

# A path, or a name and the bytes
FileSource: TypeAlias = str | Path | tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class UploadBody:
    """The body of an upload. It can be read again for another attempt."""

    name: str
    size: int
    path: Path | None = None
    content: bytes = b""

    @classmethod
    def of(cls, source: FileSource) -> UploadBody:
        """Raises `InvalidInput` for a path that cannot be read."""
        if isinstance(source, tuple):
            name, content = source
            return cls(name, len(content), content=content)
        path = Path(source)
        try:
            with path.open("rb"):
                return cls(path.name, path.stat().st_size, path)
        except OSError as error:
            raise InvalidInput(f"cannot read {path}: {error.strerror}") from None

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": "application/octet-stream", "Content-Length": str(self.size)}


def pieces(body: UploadBody) -> Iterator[bytes]:
    if body.path is None:
        yield body.content
        return
    with body.path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


async def async_pieces(body: UploadBody) -> AsyncIterator[bytes]:
    for piece in pieces(body):
        yield piece
