"""Schemas of files."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from magent2.models.api.base import ApiModel, example
from magent2.models.json_types import JsonObject

FILE_EXAMPLE: JsonObject = {
    "file_id": "file-5f…", "name": "photo.png", "media_type": "image/png", "size": 12_345, "owner": "user:ann",
    "created_at": "2026-01-02T03:04:05Z", "conversation_id": None,
}  # fmt: skip


class FileInfo(ApiModel):
    """A file. Name it by its `file_id` in the `attachments` of a message."""

    model_config = example(**FILE_EXAMPLE)

    file_id: str
    name: str
    media_type: str = Field(description="found from the content")
    size: int = Field(description="in bytes")
    owner: str
    created_at: datetime
    conversation_id: str | None = Field(description="the session that the file belongs to and is deleted with, if any")


class FileList(ApiModel):
    """Files, newest first."""

    model_config = example(files=[FILE_EXAMPLE], next=None, file_max_bytes=33_554_432)

    files: list[FileInfo]
    next: str | None = Field(description="pass it as `before` to get the next page; null on the last page")
    file_max_bytes: int = Field(description="the largest file that can be uploaded")
