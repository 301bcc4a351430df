"""The types of files that may be sent: by the extension of the name, checked against the content."""

from __future__ import annotations

from dataclasses import dataclass

from magent2.connectors.interface import SendAs
from magent2.errors import InvalidInput

OCTET_STREAM = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class MediaType:
    """A type of file. Its content starts with one of `signatures`, at `offset`. A type without signatures is UTF-8."""

    media_type: str
    signatures: tuple[bytes, ...] = ()
    offset: int = 0

    def matches(self, data: bytes) -> bool:
        if self.signatures:
            return data[self.offset :].startswith(self.signatures)
        if b"\0" in data:
            return False
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
        return True


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_OFFICE = "application/vnd.openxmlformats-officedocument"

# By the extension of the name. HTML, SVG and XML are left out, because a browser would run scripts in them.
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
    "webp": MediaType("image/webp", (b"WEBP",), offset=8),
    "pdf": MediaType("application/pdf", (b"%PDF-",)),
    "zip": MediaType("application/zip", _ZIP),
    "docx": MediaType(f"{_OFFICE}.wordprocessingml.document", _ZIP),
    "xlsx": MediaType(f"{_OFFICE}.spreadsheetml.sheet", _ZIP),
    "pptx": MediaType(f"{_OFFICE}.presentationml.presentation", _ZIP),
    "mp3": MediaType("audio/mpeg", (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
    "wav": MediaType("audio/wav", (b"WAVE",), offset=8),
    "ogg": MediaType("audio/ogg", (b"OggS",)),
    "mp4": MediaType("video/mp4", (b"ftyp",), offset=4),
    "webm": MediaType("video/webm", (b"\x1aE\xdf\xa3",)),
}

SAFE_TYPES = frozenset(media.media_type for media in MEDIA.values())
_FAMILIES: dict[SendAs, str] = {"photo": "image/", "audio": "audio/", "video": "video/"}


def media_type_of(name: str, data: bytes, send_as: SendAs) -> str:
    """Return the media type of a file. Raises `InvalidInput` if it cannot be sent in this way."""
    extension = name.rpartition(".")[2].lower() if "." in name else ""
    media = MEDIA.get(extension)
    if media is None:
        raise InvalidInput(f"files like {name[:80]!r} cannot be sent; send one of {', '.join(sorted(MEDIA))}")
    if not media.matches(data):
        raise InvalidInput(f"the content of {name[:80]!r} is not {media.media_type}; correct the extension of its name")
    family = _FAMILIES.get(send_as, "")
    if not media.media_type.startswith(family):
        raise InvalidInput(f"{name[:80]!r} is {media.media_type} and cannot be sent as {send_as}; send it as file")
    return media.media_type


def served_type(stored: object) -> str:
    """Return the type to serve a stored file as: its own type, if browsers do not run such files."""
    return stored if isinstance(stored, str) and stored in SAFE_TYPES else OCTET_STREAM
