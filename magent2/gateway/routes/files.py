"""`/api/files`: upload files, list, download and delete them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from magent2.bus.log import Log
from magent2.errors import Magent2Error, UnknownFile
from magent2.failures import log_failure
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import ACCESS_ERRORS, API, caller
from magent2.gateway.routes.events import FILE_RESPONSE, headers_of
from magent2.gateway.routes.sessions import (
    CURSOR_MAX_CHARS,
    LIST_CURSOR_PATTERN,
    LIST_MAX,
    decode_list_cursor,
    encode_list_cursor,
)
from magent2.gateway.services import Services, services_of
from magent2.gateway.uploads import FormFile, RawFile, body_pieces, declared_length
from magent2.models.address import NAME_MAX_CHARS, chat_topic, check_name
from magent2.models.api.base import KEY_MAX_CHARS
from magent2.models.api.files import FileInfo, FileList
from magent2.models.api.messages import WhenBusy
from magent2.models.envelope import MessageEnvelope
from magent2.models.files import (
    ATTACHMENTS,
    ATTACHMENTS_MAX,
    FILE_ID_MAX_CHARS,
    FileAttachment,
    attachments_of,
)
from magent2.models.json_types import JsonObject
from magent2.models.principal import Principal
from magent2.models.run_options import FILE_PARTS
from magent2.sessions.files import StoredFile, Upload, delete_file, find_file, list_files, read_chunks, unknown_file

log = logging.getLogger(__name__)

FileId = Annotated[str, Path(min_length=1, max_length=FILE_ID_MAX_CHARS)]
_BYTES: JsonObject = {"type": "string", "format": "binary"}
UPLOAD_BODY: JsonObject = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "title": "FileForm",
                    "type": "object",
                    "properties": {"file": _BYTES},
                    "required": ["file"],
                },
                "example": {"file": "(bytes)"},
            },
            "application/octet-stream": {"schema": {"title": "FileContent", **_BYTES}, "example": "(bytes)"},
        },
    }
}


router = APIRouter(prefix=API, tags=["files"])


@router.post(
    "/files",
    operation_id="upload_file",
    status_code=201,
    response_model=FileInfo,
    responses=problems(*ACCESS_ERRORS, 400, 408, 409, 413, 415, 422, 501, 507),
    openapi_extra=UPLOAD_BODY,
)
async def upload(
    request: Request,
    name: Annotated[str | None, Query(max_length=1000, description="of the file, if the body is not a form")] = None,
    idempotency_key: Annotated[
        str | None,
        Header(alias="Idempotency-Key", min_length=1, max_length=KEY_MAX_CHARS, description="one file per key"),
    ] = None,
) -> FileInfo:
    """Upload a file: as the field `file` of a form (`curl -F file=@photo.png`), or as the body itself.

    The type is found from the content. A type that the request declares must not contradict it.
    The same `Idempotency-Key` with the same content is the same file.
    """
    services = services_of(request)
    stored = await receive_file(services, request, caller(request), name, idempotency_key)
    add_audit_ids(request.scope, file_id=stored.file_id)
    return file_info(stored)


async def receive_file(
    services: Services, request: Request, principal: Principal, name: str | None, key: str | None = None
) -> StoredFile:
    """Store the file in the body of a request, as it arrives. After any error nothing of it is left."""
    scope, limits = request.scope, services.limits
    body = FormFile.of(scope) or RawFile.of(scope, name)
    upload: Upload | None = None
    try:
        async with aclosing(body_pieces(scope, request.receive, limits)) as pieces:
            async for piece in pieces:
                content = body.feed(piece)
                if upload is None and body.found:
                    upload = _begin(services, principal, body, declared_length(scope), key)
                if upload is not None:  # content of a form follows its headers
                    for part in content:
                        await upload.write(part)
        body.end()
        return await (upload or _begin(services, principal, body, 0, key)).finish()
    except BaseException:
        if upload is not None:
            await _abort(upload)
        raise


def _begin(
    services: Services, principal: Principal, body: FormFile | RawFile, length: int | None, key: str | None
) -> Upload:
    log, limits = Log(services.bus), services.limits.files
    return Upload(log, limits, principal.name, body.name, body.declared, expected_bytes=length, key=key)


async def _abort(upload: Upload) -> None:
    try:
        await upload.abort()
    except Magent2Error as error:  # the sweep removes it; the client gets the first error
        log_failure(
            log, logging.WARNING, "upload not removed", error, {"file_id": upload.file_id}, with_traceback=False
        )


@router.get("/files", operation_id="list_files", responses=problems(*ACCESS_ERRORS, 422, 501))
async def list_all(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 50,
    before: Annotated[
        str | None,
        Query(
            max_length=CURSOR_MAX_CHARS,
            description="`next` of the page before",
            json_schema_extra={"pattern": LIST_CURSOR_PATTERN},
        ),
    ] = None,
    owner: Annotated[str | None, Query(max_length=NAME_MAX_CHARS, description="for admins: only of this owner")] = None,
) -> FileList:
    """List the caller's files, newest first. A page may be short and not be the last."""
    services = services_of(request)
    principal = caller(request)
    place = None if before is None else decode_list_cursor(before)
    maximum = services.limits.file_max_bytes
    if owner is not None and not principal.owns(owner):
        return FileList(files=[], next=None, file_max_bytes=maximum)
    whose = owner if principal.admin else principal.name
    found, more = await list_files(
        Log(services.bus), None if whose is None else check_name(whose, "owner"), place, limit
    )
    cursor = None if more is None else encode_list_cursor(more)
    return FileList(files=[file_info(file) for file in found], next=cursor, file_max_bytes=maximum)


@router.get("/files/{file_id:id}", operation_id="get_file_info", responses=problems(*ACCESS_ERRORS, 404, 422, 501))
async def show(file_id: FileId, request: Request) -> FileInfo:
    """Describe a file."""
    services = services_of(request)
    return file_info(await owned_file(services, file_id, caller(request)))


@router.get(
    "/files/{file_id:id}/content",
    operation_id="download_file",
    response_class=Response,
    responses={200: FILE_RESPONSE, **problems(*ACCESS_ERRORS, 404, 422, 501)},
)
async def content(file_id: FileId, request: Request) -> Response:
    """Return the content of a file, as an attachment."""
    services = services_of(request)
    file = await owned_file(services, file_id, caller(request))
    headers = {**headers_of({"name": file.name, "media_type": file.media_type}), "Content-Length": str(file.size)}
    return StreamingResponse(read_chunks(Log(services.bus), file), headers=headers)


@router.delete(
    "/files/{file_id:id}",
    operation_id="delete_file",
    status_code=204,
    responses=problems(*ACCESS_ERRORS, 404, 422, 501, 507),
)
async def delete(file_id: FileId, request: Request) -> Response:
    """Delete a file and its content. Messages that had it keep its name."""
    services = services_of(request)
    file = await owned_file(services, file_id, caller(request))
    await delete_file(Log(services.bus), file.file_id)
    return Response(status_code=204)


def file_info(file: StoredFile) -> FileInfo:
    return FileInfo(
        file_id=file.file_id,
        name=file.name,
        media_type=file.media_type,
        size=file.size,
        owner=file.owner,
        created_at=datetime.fromtimestamp(file.created_ms / 1000, UTC),
        conversation_id=file.conversation,
    )


async def owned_file(services: Services, file_id: str, principal: Principal) -> StoredFile:
    """Return the file. A file of another owner is reported as unknown."""
    file = await find_file(Log(services.bus), file_id)
    if file is None or not principal.owns(file.owner):
        raise unknown_file(file_id)
    return file


async def owned_attachments(services: Services, file_ids: Sequence[str], principal: Principal) -> list[FileAttachment]:
    """Return the files of a message, each of which must be the caller's. Raises `UnknownFile` or a problem."""
    if len(file_ids) > ATTACHMENTS_MAX:
        raise Problem(422, "too_many_files", f"a message has at most {ATTACHMENTS_MAX} files, not {len(file_ids)}")
    return [(await owned_file(services, file_id, principal)).attachment for file_id in dict.fromkeys(file_ids)]


async def check_references(services: Services, items: Sequence[JsonObject], principal: Principal) -> None:
    """Check that all files that the parts of input items name are the caller's. Raises `UnknownFile`."""
    for item in items:
        content = item.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in FILE_PARTS:
                await owned_file(services, str(part.get("file_id")), principal)


async def with_attachments(
    services: Services, envelope: MessageEnvelope, principal: Principal, when_busy: WhenBusy = "queue"
) -> MessageEnvelope:
    """Return the envelope with the files of its metadata as the store describes them. They must be the caller's.

    The metadata names each by its id, alone or as `{"file_id": …}`. A message that was accepted before is the same
    message although one of its files was deleted since: it keeps the description that it had.
    """
    if ATTACHMENTS not in envelope.metadata:
        return envelope
    if when_busy == "steer":
        raise Problem(422, "steer_with_files", "a steer has no files; send them with another when_busy, as 'queue'")
    file_ids = _file_ids(envelope.metadata[ATTACHMENTS])
    try:
        files = await owned_attachments(services, file_ids, principal)
    except UnknownFile:
        accepted = await Log(services.bus).find(chat_topic(envelope.conversation_id), envelope.id)
        files = [] if accepted is None or accepted.erased else attachments_of(accepted.payload.get("metadata", {}))
        if [file.file_id for file in files] != list(dict.fromkeys(file_ids)):
            raise
    described: JsonObject = {**envelope.metadata, ATTACHMENTS: [file.model_dump() for file in files]}
    return envelope.model_copy(update={"metadata": described})


def _file_ids(value: object) -> list[str]:
    items = value if isinstance(value, list) else [None]
    ids = [item.get("file_id") if isinstance(item, dict) else item for item in items]
    if not all(isinstance(file_id, str) for file_id in ids):
        raise Problem(
            422,
            "bad_attachments",
            f"{ATTACHMENTS!r} must be a list of the ids of files; upload them to /api/files first",
        )
    return [str(file_id) for file_id in ids]
