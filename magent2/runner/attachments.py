"""Files in the input of a model: parts that name a file are replaced by its content, right before the request.

The log and the journal only have the parts that name a file. So the content is never recorded with a run, and every
attempt makes the same request while the file exists.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from magent2.bus.log import Log
from magent2.errors import UnknownFile
from magent2.models.files import ContentKind, FileAttachment, content_kind, size_text
from magent2.models.json_types import JsonObject
from magent2.models.run_options import FILE_PARTS
from magent2.sessions.files import StoredFile, find_file, read_file

if TYPE_CHECKING:
    from magent2.runner.context import ModelRequest

REQUEST_FILES_MAX_BYTES = 32 << 20  # of the files in one request; older files are named only
TEXT_ONLY: frozenset[ContentKind] = frozenset({"text"})
USUAL_CONTENT: frozenset[ContentKind] = frozenset({"text", "image", "file"})  # what the models of most providers take
AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3", "audio/ogg": "ogg", "audio/flac": "flac"}


class RequestFiles:
    """Fills the files of one run into its requests. It keeps what it has read, because each turn needs it again.

    The newest files come first when `max_bytes` do not suffice for all of them.
    """

    def __init__(self, log: Log, max_bytes: int = REQUEST_FILES_MAX_BYTES) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._contents: dict[str, bytes] = {}

    async def fill_in(self, request: ModelRequest, accepts: frozenset[ContentKind]) -> ModelRequest:
        """Return the request with the content of the files that the model accepts. A text names all others."""
        if isinstance(request, str) or not any(_names_files(item) for item in request):
            return request
        room = self._max_bytes
        filled: list[object] = []
        for item in reversed(request):
            if not _names_files(item):
                filled.append(item)
                continue
            parts: list[JsonObject] = []
            for part in reversed(_parts(item)):
                shown, used = await self._fill(part, accepts, room)
                parts.append(shown)
                room -= used
            filled.append(_with_parts(item, parts[::-1]))
        return cast("ModelRequest", filled[::-1])

    async def _fill(self, part: JsonObject, accepts: frozenset[ContentKind], room: int) -> tuple[JsonObject, int]:
        """Return the part with the content, and the number of bytes that it takes."""
        if not _names_file(part):
            return part, 0
        file = await find_file(self._log, str(part["file_id"]))
        if file is None:
            return _note(part, "the file was deleted"), 0
        if content_kind(file.media_type) not in accepts:
            return _text(f"[attached: {file.attachment.describe()}]"), 0
        if file.size > room:
            reason = f"left out: one request has at most {size_text(self._max_bytes)} of files"
            return _text(f"[attached: {file.attachment.describe()}; {reason}]"), 0
        try:
            content = self._contents.get(file.file_id) or await read_file(self._log, file)
        except UnknownFile:  # deleted since it was found
            return _note(part, "the file was deleted"), 0
        self._contents[file.file_id] = content
        return content_part(file, content, part.get("detail")), file.size


def content_part(file: StoredFile, content: bytes, detail: object = None) -> JsonObject:
    """Return the content of a file as a part of the Responses API. Text is text, under the name of the file."""
    kind = content_kind(file.media_type)
    if kind == "text":
        return _text(f"[attached: {file.attachment.describe()}]\n\n{content.decode(errors='replace')}")
    encoded = base64.b64encode(content).decode()
    if kind == "audio":
        known = AUDIO_FORMATS.get(file.media_type, "wav")
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": known}}
    url = f"data:{file.media_type};base64,{encoded}"
    if kind == "image":
        return {"type": "input_image", "image_url": url, "detail": detail if isinstance(detail, str) else "auto"}
    return {"type": "input_file", "filename": file.name, "file_data": url}


def _note(part: Mapping[str, object], reason: str) -> JsonObject:
    """Return a text in place of a file that there is no more. A part that a client wrote may not have its name."""
    try:
        about = FileAttachment.model_validate(part).describe()
    except ValueError:
        about = "a file"
    return _text(f"[attached: {about}; {reason}]")


def _text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def _parts(item: object) -> Sequence[JsonObject]:
    """Return the parts of a message. Results of tools are left alone: they may name files of the provider."""
    content = item.get("content") if isinstance(item, Mapping) and "role" in item else None
    return content if isinstance(content, list) else ()


def _names_files(item: object) -> bool:
    return any(map(_names_file, _parts(item)))


def _names_file(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in FILE_PARTS and isinstance(part.get("file_id"), str)


def _with_parts(item: object, parts: Iterable[JsonObject]) -> object:
    """Return the message with these parts. Text alone is plain text, which every server understands."""
    given = list(parts)
    if all(part.get("type") == "input_text" for part in given):
        return {**cast(JsonObject, item), "content": "\n\n".join(str(part["text"]) for part in given)}
    return {**cast(JsonObject, item), "content": given}
