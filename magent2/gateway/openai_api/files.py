"""Files in requests of `/v1`: parts with a data URL are stored and named, parts with a file id are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magent2.bus.log import Log
from magent2.errors import InvalidInput, UnknownFile
from magent2.gateway.openai_api.errors import invalid, unsupported
from magent2.gateway.routes.files import owned_file
from magent2.gateway.services import Services
from magent2.models.files import FileAttachment, decode_data_url, file_part
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.media import OCTET_STREAM
from magent2.models.principal import Principal
from magent2.models.run_options import FILE_PARTS, RunOptions
from magent2.sessions.files import store_inline

INLINE = "inline"  # field of a part whose content is still in the request, and its file id until it is stored
PLACE = "place"  # field of a part until it is stored: where it is in the request, for errors
AUDIO_TYPES = {"wav": "audio/wav", "mp3": "audio/mpeg"}
REQUEST_FILES_MAX = 100  # parts of one request that are files: a conversation that is sent again has all its files
DEFAULT_NAMES = {"input_image": "image", "input_audio": "audio", "input_file": "file"}
IMAGE_DETAILS = ("auto", "low", "high", "original")
WHERE_TO = "give the content as a data URL, or upload the file (POST /api/files) and give its file_id"


def parse_file_part(where: str, part: JsonMapping) -> JsonObject:
    """A part that names a stored file, or that has its content until `store_files`. Raises a problem."""
    kind = str(part["type"])
    detail = {} if part.get("detail") is None else {"detail": part["detail"]}
    if detail and part["detail"] not in IMAGE_DETAILS:
        raise invalid(f"{where}: 'detail' is one of {', '.join(IMAGE_DETAILS)}", f"{where}.detail")
    if isinstance(part.get("file_id"), str):
        return {"type": kind, "file_id": part["file_id"], PLACE: where, **detail}
    name = part.get("filename")
    url = _data_url(where, kind, part)
    inline = {"url": url, "name": name if isinstance(name, str) and name.strip() else DEFAULT_NAMES[kind]}
    return {"type": kind, "file_id": INLINE, INLINE: inline, PLACE: where, **detail}


def _data_url(where: str, kind: str, part: JsonMapping) -> str:
    if kind == "input_audio":
        audio = part.get("input_audio")
        media_type = AUDIO_TYPES.get(str(audio.get("format"))) if isinstance(audio, Mapping) else None
        if not isinstance(audio, Mapping) or media_type is None or not isinstance(audio.get("data"), str):
            raise invalid(
                f"{where}: input_audio has 'data' in base64 and a 'format', wav or mp3", f"{where}.input_audio"
            )
        return f"data:{media_type};base64,{audio['data']}"
    field = "image_url" if kind == "input_image" else "file_data"
    if part.get("file_url") is not None:
        raise unsupported(f"{where}.file_url", f"this server does not fetch files; {WHERE_TO}")
    url = part.get(field)
    if not isinstance(url, str):
        raise invalid(f"{where}: a part of the type {kind!r} has a {field!r} or a 'file_id'", f"{where}.{field}")
    if kind == "input_file" and not url.startswith(("data:", "http:", "https:")):
        return f"data:{OCTET_STREAM};base64,{url}"
    if not url.startswith("data:"):
        raise unsupported(f"{where}.{field}", f"this server does not fetch files; {WHERE_TO}")
    return url


async def store_files(
    services: Services, principal: Principal, session_id: str, options: RunOptions
) -> tuple[RunOptions, list[FileAttachment]]:
    """Store the files that the input brings, and check those that it names. Return the options and all its files.

    The same content in the same session is one file, so a repeated request has the same options.
    """
    check_file_count(options.input or ())
    items: list[JsonObject] = []
    files: dict[str, FileAttachment] = {}  # a conversation that is sent again may name one several times
    for item in options.input or ():
        content = item.get("content")
        if not isinstance(content, list):
            items.append(item)
            continue
        parts: list[JsonObject] = []
        for part in content:
            if part.get("type") not in FILE_PARTS:
                parts.append(part)
                continue
            file = await _stored(services, principal, session_id, part)
            files[file.file_id] = file
            detail = {"detail": part["detail"]} if "detail" in part else {}
            parts.append({**file_part(file), "type": part["type"], **detail})
        items.append({**item, "content": parts})
    if not files:
        return options, []
    return options.model_copy(update={"input": items}), list(files.values())


def check_file_count(items: Sequence[JsonMapping]) -> None:
    """Refuse a request with too many parts that are files, before any of them is stored."""
    contents = [item["content"] for item in items if isinstance(item.get("content"), list)]
    number = sum(part.get("type") in FILE_PARTS for content in contents for part in content)
    if number > REQUEST_FILES_MAX:
        text = f"a request has at most {REQUEST_FILES_MAX} parts that are files, not {number}; leave older ones out"
        raise invalid(text, "input", "too_many_files")


async def _stored(services: Services, principal: Principal, session_id: str, part: JsonMapping) -> FileAttachment:
    inline, place = part.get(INLINE), str(part[PLACE])
    if inline is None:
        try:
            return (await owned_file(services, str(part["file_id"]), principal)).attachment
        except UnknownFile as error:
            raise invalid(str(error), f"{place}.file_id", "unknown_file", 404) from None
    limits, name = services.limits.files, str(inline["name"])
    try:
        content, declared = decode_data_url(inline["url"], limits.file_max_bytes)
        return await store_inline(Log(services.bus), limits, principal.name, session_id, content, name, declared)
    except InvalidInput as error:
        raise invalid(str(error), place, "invalid_file") from None


def shown_file_part(part: JsonMapping) -> JsonObject:
    """A stored part as a client gets it back."""
    if part["type"] == "input_image":
        return {"type": "input_image", "file_id": part["file_id"], "detail": part.get("detail") or "auto"}
    return {"type": part["type"], "file_id": part["file_id"], "filename": part.get("name")}
