"""Pictures that a model has drawn: they come inside its answer, and are kept beside it.

Each is checked, stored as a blob and shown by a `message` event that names it; the history keeps the answer without it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magent2.bus.operations import PutBlob
from magent2.bus.records import NewRecord
from magent2.models.events import MessageEvent
from magent2.runner.context import RunContext
from magent2.sessions.stream import event_payload, stream_record

PICTURE = "image_generation_call"
PICTURE_MAX_BYTES = 8 << 20
NO_PICTURE = "[The model has drawn something that is no picture, or too large a one; it was not kept.]"

# How files of these kinds begin.
BEGINNINGS = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png", b"RIFF": "image/webp"}

log = logging.getLogger(__name__)


async def keep_pictures(
    context: RunContext, answer: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[NewRecord]]:
    """The answer without its pictures, and the records that show them. `fields`: where the events belong."""
    output = answer.get("output", ())
    if not any(item.get("type") == PICTURE and item.get("result") for item in output):
        return answer, []
    shown: list[NewRecord] = []
    kept: list[Mapping[str, Any]] = []
    for item in output:
        if item.get("type") == PICTURE and item.get("result"):
            shown.append(await _keep(context, str(item["result"]), fields))
            kept.append({**item, "result": ""})
        else:
            kept.append(item)
    return {**answer, "output": kept}, shown


async def _keep(context: RunContext, encoded: str, fields: Mapping[str, Any]) -> NewRecord:
    data = picture_of(encoded)
    if data is None:
        log.warning("a picture was not kept", extra={"run_id": context.run_id, "chars": len(encoded)})
        return _record(context, fields, text=NO_PICTURE)
    name = await context.bus.acall(PutBlob(data))
    facts = {"sha256": name, "media_type": media_type(data), "bytes": len(data)}
    return replace(_record(context, fields, text="", attachments=[facts]), blobs=(name,))


def _record(context: RunContext, fields: Mapping[str, Any], **said: Any) -> NewRecord:
    return stream_record({**event_payload(MessageEvent(conversation_id=context.conversation_id, **said)), **fields})


def picture_of(encoded: str) -> bytes | None:
    """The picture, if it is one of a size that can be kept."""
    if len(encoded) > PICTURE_MAX_BYTES * 4 // 3 + 4:
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if media_type(data) is not None else None


def media_type(data: bytes) -> str | None:
    return next((kind for beginning, kind in BEGINNINGS.items() if data.startswith(beginning)), None)
