"""The types of files that may be sent: by the extension of the name, checked against the content."""

from __future__ import annotations

from magent2.connectors.interface import SendAs
from magent2.errors import InvalidInput
from magent2.models.media import MEDIA

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
