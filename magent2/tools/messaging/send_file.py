"""`send_file`: a file from beneath the agent's own folder, as it is when it is sent, to where the user is reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, PutBlob
from magent2.connectors.interface import Attachment, SendAs
from magent2.connectors.media import media_type_of
from magent2.settings import Settings
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import SendMark
from magent2.tools.messaging.common import TEXT_MAX_CHARS, checked_text, now_text
from magent2.tools.messaging.destinations import UserDestination, find_destination, plan_send_to_user
from magent2.tools.messaging.rooted_files import folder_of, read_beneath
from magent2.tools.sending import SendResult
from magent2.tools.sending_tool import Arguments, Payload, SendingTool

NEEDS = ("files",)


class FileArguments(Arguments):
    path: str = Field(description='A file in your own folder, by its path there: "report.pdf", "charts/may.png".')
    send_as: SendAs = Field(default="file", description="How it is to be shown.")
    text: str | None = Field(default=None, description="A word to go with it.")
    reply_to: str | None = Field(default=None, description="The id of a message of this conversation that it answers.")


class AttachmentFacts(Payload):
    name: str
    sha256: str
    media_type: str
    bytes: int
    send_as: SendAs

    def attachment(self) -> Attachment:
        return Attachment(**self.model_dump(exclude={"version"}))


class FilePayload(Payload):
    place: UserDestination
    file: AttachmentFacts
    text: str
    reply_to: str | None = None
    created_at: str


class SendFile(SendingTool[FileArguments, FilePayload]):
    """`root` holds a folder per agent; `None` for the one that the settings name."""

    name = "send_file"
    description = "Send a file from your own folder to the user you work for."
    arguments = FileArguments
    payload = FilePayload

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    async def prepare(self, log: Log, arguments: FileArguments, context: ToolExecutionContext) -> FilePayload:
        text = "" if arguments.text is None else checked_text(arguments.text, TEXT_MAX_CHARS)
        place = await find_destination(log, context.run, NEEDS, arguments.reply_to)
        root = self._root or Settings.read().files_dir
        name, data = read_beneath(folder_of(root, context.run.agent), arguments.path)
        media_type = media_type_of(name, data, arguments.send_as)
        sha256 = await log.run(PutBlob(data))
        file = AttachmentFacts(
            name=name, sha256=sha256, media_type=media_type, bytes=len(data), send_as=arguments.send_as
        )
        return FilePayload(place=place, file=file, text=text, reply_to=arguments.reply_to, created_at=now_text())

    async def perform(self, log: Log, payload: FilePayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        return await plan_send_to_user(
            log,
            payload.place,
            context.run,
            mark,
            NEEDS,
            text=payload.text,
            reply_to=payload.reply_to,
            created_at=payload.created_at,
            attachments=(payload.file.attachment(),),
        )

    def target(self, payload: FilePayload) -> str:
        return payload.place.shown

    def answer(self, payload: FilePayload, sent: SendResult) -> dict[str, Any]:
        return {**super().answer(payload, sent), "sha256": payload.file.sha256, "bytes": payload.file.bytes}
