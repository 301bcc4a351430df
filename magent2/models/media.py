"""Media types of files, found by their content. Pure.

`MEDIA` has all types that the runtime knows. `upload_type` decides which of them may be uploaded.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from magent2.errors import UnsupportedFile

OCTET_STREAM = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class MediaType:
    """A type of file. Its content starts with one of `signatures`, at `offset`. A type without signatures is UTF-8.

    `container` is what the content starts with before the offset.
    """

    media_type: str
    signatures: tuple[bytes, ...] = ()
    offset: int = 0
    container: bytes = b""

    def matches(self, data: bytes) -> bool:
        if self.signatures:
            return data.startswith(self.container) and data.startswith(self.signatures, self.offset)
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
    "webp": MediaType("image/webp", (b"WEBP",), offset=8, container=b"RIFF"),
    "pdf": MediaType("application/pdf", (b"%PDF-",)),
    "zip": MediaType("application/zip", _ZIP),
    "docx": MediaType(f"{_OFFICE}.wordprocessingml.document", _ZIP),
    "xlsx": MediaType(f"{_OFFICE}.spreadsheetml.sheet", _ZIP),
    "pptx": MediaType(f"{_OFFICE}.presentationml.presentation", _ZIP),
    "mp3": MediaType("audio/mpeg", (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
    "wav": MediaType("audio/wav", (b"WAVE",), offset=8, container=b"RIFF"),
    "ogg": MediaType("audio/ogg", (b"OggS",)),
    "flac": MediaType("audio/flac", (b"fLaC",)),
    "mp4": MediaType("video/mp4", (b"ftyp",), offset=4),
    "webm": MediaType("video/webm", (b"\x1aE\xdf\xa3",)),
}

SAFE_TYPES = frozenset(media.media_type for media in MEDIA.values())


def served_type(stored: object) -> str:
    """Return the type to serve a stored file as: its own type, if browsers do not run such files."""
    return stored if isinstance(stored, str) and stored in SAFE_TYPES else OCTET_STREAM


# --- uploads

PLAIN_TEXT = "text/plain"
TEXT_TYPES = frozenset(media.media_type for media in MEDIA.values() if not media.signatures)
# Types that are found by their signature. The order matters: the first that matches is the type.
UPLOAD_SIGNATURES = tuple(MEDIA[name] for name in ("png", "jpg", "gif", "webp", "pdf", "wav", "ogg", "flac", "mp3"))
UPLOADABLE = "PNG, JPEG, GIF, WebP, PDF, WAV, MP3, Ogg, FLAC, or UTF-8 text (plain, Markdown, CSV, JSON)"

# What a program begins with. Two letters are not enough for a Windows program: text has no null bytes, programs do.
EXECUTABLES: tuple[tuple[bytes, str, bool], ...] = (
    (b"\x7fELF", "a Linux program (ELF)", False),
    (b"MZ", "a Windows program", True),
    (b"\xfe\xed\xfa\xce", "a macOS program (Mach-O)", False),
    (b"\xfe\xed\xfa\xcf", "a macOS program (Mach-O)", False),
    (b"\xce\xfa\xed\xfe", "a macOS program (Mach-O)", False),
    (b"\xcf\xfa\xed\xfe", "a macOS program (Mach-O)", False),
    (b"\xca\xfe\xba\xbe", "a macOS program or a Java class", False),
    (b"\xbe\xba\xfe\xca", "a macOS program (Mach-O)", False),
    (b"\0asm", "a WebAssembly program", False),
    (b"dex\n", "an Android program", True),
    (b"#!", "a script that can be run (#!)", False),
)

# Other names of the same types, and what clients declare when they do not know the type
_ALIASES = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "audio/vnd.wave": "audio/wav",
    "audio/x-flac": "audio/flac",
    "application/ogg": "audio/ogg",
    "application/csv": "text/csv",
    "text/x-markdown": "text/markdown",
    "application/x-pdf": "application/pdf",
}
_UNDECLARED = frozenset({"", OCTET_STREAM, "binary/octet-stream", "application/x-www-form-urlencoded"})


def upload_type(head: bytes, declared: str, name: str) -> str:
    """Return the type of an upload by the beginning of its content. Raises `UnsupportedFile`.

    `declared` is what the client says. It must not contradict the content; of text it decides which kind of text it
    is, as the extension of the name does. Text of another kind, such as HTML or a program, is stored as plain text.
    Whether the rest of a text is UTF-8 too has to be checked as it arrives (`TextCheck`).
    """
    for signature, what, with_null in EXECUTABLES:
        if head.startswith(signature) and (b"\0" in head or not with_null):
            raise UnsupportedFile(f"the file is {what}, which cannot be uploaded; {_allowed()}")
    wanted = declared.partition(";")[0].strip().lower()
    wanted = _ALIASES.get(wanted, wanted)
    found = next((media.media_type for media in UPLOAD_SIGNATURES if media.matches(head)), None)
    is_text = _is_text(head)
    if is_text and found != "application/pdf":  # a text may begin with letters such as ID3; only a PDF may be text
        found = None
    if found is None and not is_text:
        raise UnsupportedFile(f"the content of the file is of no known type; {_allowed()}")
    if found is None:
        return _text_type(wanted, name)
    if wanted not in _UNDECLARED and wanted != found:
        raise UnsupportedFile(f"the file is declared as {wanted[:80]!r}, but its content is {found}; declare that")
    return found


def _text_type(wanted: str, name: str) -> str:
    if wanted in TEXT_TYPES:
        return wanted
    if wanted not in _UNDECLARED and not wanted.startswith("text/"):
        raise UnsupportedFile(f"the file is declared as {wanted[:80]!r}, but its content is text; {_allowed()}")
    media = MEDIA.get(name.rpartition(".")[2].lower()) if "." in name else None
    return media.media_type if media is not None and media.media_type in TEXT_TYPES else PLAIN_TEXT


def _is_text(head: bytes) -> bool:
    try:
        TextCheck().take(head)
    except UnsupportedFile:
        return False
    return True


def _allowed() -> str:
    return f"upload one of {UPLOADABLE}"


class TextCheck:
    """Checks piece by piece that a file is text: UTF-8 without null bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def take(self, piece: bytes, *, final: bool = False) -> None:
        """Check the next piece. Raises `UnsupportedFile`."""
        if b"\0" in piece:
            raise UnsupportedFile(f"the file begins as text but has a null byte; {_allowed()}")
        try:
            self._decoder.decode(piece, final)
        except UnicodeDecodeError:
            raise UnsupportedFile("the file is not UTF-8 text; save it as UTF-8") from None
