"""Files that a message brings: their description in its metadata, their names, and their parts in a model's input.

A message names its files in `metadata["attachments"]`. The log has the bytes once, in the topic of the file
(`magent2/sessions/files.py`). A part of a model's input names a file by its id; the worker replaces it by the content
right before the request (`magent2/runner/attachments.py`).
"""

from __future__ import annotations

import base64
import binascii
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal, NotRequired, TypeAlias, TypedDict
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ConfigDict, ValidationError

from magent2.errors import FileTooLarge, InvalidInput
from magent2.models.address import DOT_NAMES
from magent2.models.media import TEXT_TYPES

ATTACHMENTS = "attachments"  # metadata field of mail, and field of the event that shows it
ATTACHMENTS_MAX = 20  # files of one message
FILE_NAME_MAX_BYTES = 255
FILE_ID_MAX_CHARS = 200

ContentKind: TypeAlias = Literal["text", "image", "file", "audio"]  # what a model accepts as input

_PARTS: Mapping[ContentKind, str] = {"image": "input_image", "audio": "input_audio", "file": "input_file"}


class FileAttachment(BaseModel):
    """A file of a message."""

    model_config = ConfigDict(frozen=True)

    file_id: str
    name: str
    media_type: str
    size: int

    def describe(self) -> str:
        """What a model reads that does not get the content."""
        return f"{self.name}, {self.media_type}, {size_text(self.size)}"


class FilePart(TypedDict):
    """A part of a model's input that names a file. A part that a client wrote may have only `type` and `file_id`."""

    type: str
    file_id: str
    name: NotRequired[str]
    media_type: NotRequired[str]
    size: NotRequired[int]
    detail: NotRequired[str]


def attachments_of(metadata: Mapping[str, object]) -> list[FileAttachment]:
    """Return the files in the metadata of a message. Attachments of agents, which have no file id, are left out."""
    found = metadata.get(ATTACHMENTS)
    if not isinstance(found, list):
        return []
    files = (_attachment(item) for item in found if isinstance(item, Mapping))
    return [file for file in files if file is not None]


def _attachment(item: Mapping[str, object]) -> FileAttachment | None:
    try:
        return FileAttachment.model_validate(item)
    except ValidationError:
        return None


def content_kind(media_type: str) -> ContentKind:
    """Return what a model has to accept to get a file of this type."""
    if media_type in TEXT_TYPES:
        return "text"
    family = media_type.partition("/")[0]
    return "image" if family == "image" else "audio" if family == "audio" else "file"


def file_part(file: FileAttachment) -> FilePart:
    """Return the part of a model's input that names a file. Text is a file too until its content is filled in."""
    kind = content_kind(file.media_type)
    return {"type": _PARTS.get(kind, "input_file"), **file.model_dump()}  # type: ignore[typeddict-item]


def describe_attachments(files: Iterable[FileAttachment]) -> str:
    """Return a line for each file, for readers that get only text."""
    return "\n".join(f"[attached: {file.describe()}]" for file in files)


def text_with_attachments(text: str, metadata: Mapping[str, object]) -> str:
    """Return the text of a message and a line for each of its files."""
    lines = describe_attachments(attachments_of(metadata))
    return "\n\n".join(part for part in (text, lines) if part)


def size_text(size: int) -> str:
    """Return a size as people read it: `12 kB`."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.3g} kB" if size < 999_500 else f"{size / 1e6:.3g} MB"


def check_file_name(text: str) -> str:
    """Return the name of a file without outer spaces. Raises `InvalidInput` for a path or an unprintable name."""
    name = unicodedata.normalize("NFC", text.strip())
    if not name:
        raise InvalidInput("the file needs a name: '?name=photo.png', or the file name of the form")
    if "/" in name or "\\" in name or name in DOT_NAMES:
        raise InvalidInput(f"{name[:80]!r} is a path; send the name of the file only")
    if not name.isprintable():
        raise InvalidInput(f"the file name {name[:80]!r} has characters that cannot be printed; remove them")
    if len(name.encode(errors="surrogatepass")) > FILE_NAME_MAX_BYTES:
        raise InvalidInput(f"a file name has at most {FILE_NAME_MAX_BYTES} bytes; shorten {name[:40]!r}…")
    return name


def decode_data_url(url: str, max_bytes: int) -> tuple[bytes, str]:
    """Return content and declared type of a `data:` URL. Raises `InvalidInput` or `FileTooLarge`."""
    head, comma, body = url.partition(",")
    if not head.startswith("data:") or not comma:
        raise InvalidInput("the content of a file must be a data URL: 'data:image/png;base64,…'")
    declared, *options = head.removeprefix("data:").split(";")
    is_base64 = "base64" in (option.strip().lower() for option in options)
    if len(body) > max_bytes * 4 // 3 + 4 if is_base64 else len(body) > 3 * max_bytes:
        raise FileTooLarge(f"a file has at most {max_bytes} bytes")
    try:
        data = base64.b64decode(body, validate=True) if is_base64 else unquote_to_bytes(body)
    except binascii.Error:
        raise InvalidInput("the content of the data URL is not base64") from None
    if len(data) > max_bytes:
        raise FileTooLarge(f"a file has at most {max_bytes} bytes, not {len(data)}")
    return data, declared
