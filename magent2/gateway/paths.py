"""Ids in paths: a slash that is written as `%2F` belongs to an id, a plain slash separates the parts of a path.

Servers decode the whole path before routing, so that the two cannot be told apart. Here each part is decoded on its
own, and `%2F` and `%25` remain until a convertor makes an id of the part.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Scope


def keep_encoded_slashes(scope: Scope) -> None:
    """Replace the path of a request by one in which the slashes of ids are `%2F` and percent signs are `%25`."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%" in raw:
        scope["path"] = "/".join(map(_encode_part, raw.split(b"/")))


def _encode_part(raw: bytes) -> str:
    decoded = unquote_to_bytes(raw).decode(errors="replace")
    return decoded.replace("%", "%25").replace("/", "%2F")


class IdConvertor(Convertor[str]):
    """`{name:id}` in a route: one part of a path, as the id that it encodes."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace("%2F", "/").replace("%25", "%")

    def to_string(self, value: str) -> str:
        return value.replace("%", "%25").replace("/", "%2F")


class LastIdConvertor(IdConvertor):
    """`{name:last_id}` in a route: the rest of a path as one id, which may also contain plain slashes."""

    regex = ".+"


register_url_convertor("id", IdConvertor())
register_url_convertor("last_id", LastIdConvertor())
