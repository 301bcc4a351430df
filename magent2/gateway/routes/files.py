"""`…/{id}/files/{sha256}`: a file that was sent in a session, for whoever owns it, to be kept and not to be run."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from magent2.bus.operations import OLDEST, GetBlob, Read
from magent2.bus.records import Page, Record
from magent2.connectors.media import OCTET_STREAM, served_type
from magent2.errors import BlobMissing
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, SESSION_ERRORS, SessionId, caller, get_session
from magent2.gateway.services import Services
from magent2.models.address import stream_topic

PAGE = 1000

FILE: dict[str, Any] = {
    "description": "The file, as an attachment",
    "content": {OCTET_STREAM: {"schema": {"type": "string", "format": "binary"}, "example": "(bytes)"}},
}
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
AtSeq = Annotated[
    int | None,
    Query(ge=1, le=2**53 - 1, description="the seq of the event that shows the file; quicker when it is given"),
]


def router(services: Services) -> APIRouter:
    routes = APIRouter(prefix=API, tags=["sessions"])

    @routes.get(
        "/sdk/session/{session_id:path}/files/{sha256}",
        response_class=Response,
        responses={200: FILE, **problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422)},
    )
    async def file(session_id: SessionId, sha256: Sha256, request: Request, seq: AtSeq = None) -> Response:
        """A file that an event of the session shows."""
        session = await get_session(services, session_id, caller(request))
        facts = await _shown(services, session.session_id, sha256, seq)
        if facts is None:
            raise _unknown(sha256)
        try:
            data = await services.bus.acall(GetBlob(sha256))
        except BlobMissing:
            raise _unknown(sha256) from None
        return Response(data, headers=headers_of(facts))

    return routes


async def _shown(services: Services, session_id: str, sha256: str, seq: int | None) -> dict[str, Any] | None:
    """What the session says of the file: only what one of its own events names is a file of the session."""
    after = OLDEST if seq is None else seq - 1
    while True:
        page: Page = await services.bus.acall(Read(stream_topic(session_id), after, PAGE if seq is None else 1))
        found = next((item for record in page.records for item in _attached(record, sha256)), None)
        if found is not None or seq is not None or not page.records:
            return found
        after = page.records[-1].seq
        if after >= page.last:
            return None


def _attached(record: Record, sha256: str) -> list[dict[str, Any]]:
    if sha256 not in record.blobs:
        return []
    return [dict(item) for item in record.payload.get("attachments") or () if item.get("sha256") == sha256]


def headers_of(facts: dict[str, Any]) -> dict[str, str]:
    """A browser keeps it under its name; that it takes it for nothing else, the guard sees to on every answer."""
    name = str(facts.get("name") or "file")
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._- ") else "_" for char in name)
    return {
        "Content-Type": served_type(facts.get("media_type")),
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, no-store",
    }


def _unknown(sha256: str) -> Problem:
    return Problem(404, "unknown_file", f"no message of this session shows a file {sha256}")
