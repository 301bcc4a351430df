"""Bodies with a file, read piece by piece: raw, or as `multipart/form-data`, which browsers and curl send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.types import Message, Receive, Scope

from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.http import CLOSE, LENGTH_MAX_DIGITS, header
from magent2.gateway.problems import Problem

FORM = b"multipart/form-data"
FORM_FIELD = "file"
FORM_MAX_BYTES = 64 << 10  # of a form, besides its file


async def body_pieces(scope: Scope, receive: Receive, limits: GatewayLimits) -> AsyncGenerator[bytes]:
    """Yield the body of an upload as it arrives.

    Raises a problem if the body is larger than a file may be, if nothing arrives for `body_max_s`, or if the whole
    takes longer than `upload_max_s`.
    """
    length, size_max = declared_length(scope), limits.file_max_bytes + FORM_MAX_BYTES
    if length is not None and length > size_max:
        raise _too_large(limits)
    deadline, size = asyncio.get_running_loop().time() + limits.upload_max_s, 0
    more = True
    while more:
        message = await _receive_before(deadline, receive, limits)
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > size_max:
            raise _too_large(limits)
        yield piece
        more = message.get("more_body", False)


async def _receive_before(deadline: float, receive: Receive, limits: GatewayLimits) -> Message:
    """Return the next message of a body. Raises a problem if it does not come in time or if the client has left."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(min(limits.body_max_s, deadline - loop.time())):
            message = await receive()
    except TimeoutError:
        over = loop.time() >= deadline
        raise Problem.body_too_slow(limits.upload_max_s if over else limits.body_max_s) from None
    if message["type"] == "http.disconnect":
        raise Problem(400, "body_incomplete", "the connection closed within the body; send it again")
    return message


def _too_large(limits: GatewayLimits) -> Problem:
    return Problem(413, "file_too_large", f"a file has at most {limits.file_max_bytes} bytes", CLOSE)


def declared_length(scope: Scope) -> int | None:
    """Return the Content-Length of a request; `None` if it has none."""
    text = header(scope, b"content-length")
    if not text.isdigit():
        return None
    return int(text[: LENGTH_MAX_DIGITS + 1])


@dataclass(slots=True)
class FormFile:
    """The file in a form, found while the form arrives. `name` and `declared` are known when `found` is set.

    Raises `Problem` for a form with other fields, and for one that is not complete.
    """

    boundary: bytes
    found: bool = False
    name: str = ""
    declared: str = ""
    _headers: dict[str, str] = field(default_factory=dict)
    _header_name: bytes = b""
    _header_value: bytes = b""
    _content: list[bytes] = field(default_factory=list)
    _ended: bool = False
    _parser: MultipartParser = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._parser = MultipartParser(
                self.boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_field": self._on_header_name,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_data,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _bad_form(str(error)) from None

    @classmethod
    def of(cls, scope: Scope) -> FormFile | None:
        """Return a reader for the form of a request; `None` if its body is not a form."""
        kind, options = parse_options_header(header(scope, b"content-type"))
        if kind != FORM:
            return None
        if not options.get(b"boundary"):
            raise _bad_form("its Content-Type has no boundary")
        return cls(options[b"boundary"])

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece of the body. Return the pieces of the file in it."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _bad_form(str(error)) from None
        content, self._content = self._content, []
        return content

    def end(self) -> None:
        """Check that the form was complete and had a file."""
        if not self._ended:
            raise _bad_form("it ends within a part")
        if not self.found:
            raise _bad_form(f"it has no file; send one in the field {FORM_FIELD!r}")

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.decode("latin-1").lower()] = self._header_value.decode("latin-1")
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", ""))
        field_name = options.get(b"name", b"").decode(errors="replace")
        if field_name != FORM_FIELD or b"filename" not in options:
            raise Problem(
                422,
                "unknown_field",
                f"the form has a field {field_name[:80]!r}; send nothing but a file, in the field {FORM_FIELD!r}",
            )
        if self.found:
            raise Problem(422, "several_files", "the form has several files; send one request for each")
        self.found = True
        self.name = options[b"filename"].decode(errors="replace")
        self.declared = self._headers.get("content-type", "")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._content.append(data[start:end])

    def _on_end(self) -> None:
        self._ended = True


def _bad_form(reason: str) -> Problem:
    return Problem(400, "bad_form", f"the form cannot be read: {reason}")


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file that is the whole body. Its name is that of the query, else of the header Content-Disposition."""

    name: str
    declared: str
    found: bool = True

    @classmethod
    def of(cls, scope: Scope, name: str | None) -> RawFile:
        _, options = parse_options_header(header(scope, b"content-disposition"))
        given = options.get(b"filename", b"").decode(errors="replace") if name is None else name
        return cls(given, header(scope, b"content-type").decode("latin-1"))

    def feed(self, piece: bytes) -> list[bytes]:
        return [piece]

    def end(self) -> None:
        """A raw file ends with the body."""
