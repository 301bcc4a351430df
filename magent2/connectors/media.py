"""Which files may be sent: what their names say, what their contents must begin with, and how they are served again."""

from __future__ import annotations

from dataclasses import dataclass

from magent2.connectors.interface import SendAs
from magent2.errors import InvalidInput

OCTET_STREAM = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class MediaType:
    """A type of file. `beginnings`: what one of its kind starts with; text has none, and is UTF-8."""

    media_type: str
    beginnings: tuple[bytes, ...] = ()
    at: int = 0  # where the beginning stands

    def fits(self, data: bytes) -> bool:
        if self.beginnings:
            return data[self.at :].startswith(self.beginnings)
        if b"\0" in data:
            return False
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        return True


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_OFFICE = "application/vnd.openxmlformats-officedocument"

# By the ending of the name. Nothing in here runs in a browser: HTML, SVG and XML are not.
MEDIA: dict[str, MediaType] = {
    "txt": MediaType("text/plain"),
    "log": MediaType("text/plain"),
    "md": MediaType("text/markdown"),
    "csv": MediaType("text/csv"),
    "json": MediaType("application/json"),
    "png": MediaType("image/png", (b"\x89PNG\r\n\x1a\n",)),
    "jpg": MediaType("image/jpeg", (b"\xff\xd8\xff",)),
    "jpeg": MediaType("image/jpeg", (b"\xff\xd8\xff",)),
    "gif": MediaType("image/gif", (b"GIF87a", b"GIF89a")),
    "webp": MediaType("image/webp", (b"WEBP",), at=8),
    "pdf": MediaType("application/pdf", (b"%PDF-",)),
    "zip": MediaType("application/zip", _ZIP),
    "docx": MediaType(f"{_OFFICE}.wordprocessingml.document", _ZIP),
    "xlsx": MediaType(f"{_OFFICE}.spreadsheetml.sheet", _ZIP),
    "pptx": MediaType(f"{_OFFICE}.presentationml.presentation", _ZIP),
    "mp3": MediaType("audio/mpeg", (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
    "wav": MediaType("audio/wav", (b"WAVE",), at=8),
    "ogg": MediaType("audio/ogg", (b"OggS",)),
    "mp4": MediaType("video/mp4", (b"ftyp",), at=4),
    "webm": MediaType("video/webm", (b"\x1aE\xdf\xa3",)),
}

SAFE_TYPES = frozenset(media.media_type for media in MEDIA.values())
_FAMILIES: dict[SendAs, str] = {"photo": "image/", "audio": "audio/", "video": "video/"}


def media_type_of(name: str, data: bytes, send_as: SendAs) -> str:
    """The type of a file that may be sent in this way."""
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    media = MEDIA.get(ending)
    if media is None:
        raise InvalidInput(f"{name[:80]!r} is of a type that is not sent; take one of {', '.join(sorted(MEDIA))}")
    if not media.fits(data):
        raise InvalidInput(f"{name[:80]!r} is not what its name says, {media.media_type}; give it its right ending")
    family = _FAMILIES.get(send_as, "")
    if not media.media_type.startswith(family):
        raise InvalidInput(f"{name[:80]!r} is {media.media_type} and cannot be sent as {send_as}; send it as file")
    return media.media_type


def served_type(stored: object) -> str:
    """What a stored file is served as: its own type if that is harmless."""
    return stored if isinstance(stored, str) and stored in SAFE_TYPES else OCTET_STREAM
