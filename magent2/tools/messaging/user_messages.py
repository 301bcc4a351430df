"""`say` and `send_file`: messages to the user that a run acts for, through their connector.

A user is reached on the session page (the connector `web`), or through a connector to another service, under the target
by which that service knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, PutBlob
from magent2.connectors.builtin import message_record
from magent2.connectors.interface import Attachment, OutgoingMessage, SendAs
from magent2.connectors.media import media_type_of
from magent2.connectors.outbox import queue_records
from magent2.directory.connectors import CONNECTORS, ConnectorRegistration, find_connector
from magent2.directory.entity import look_up_entity
from magent2.directory.users import USERS, WEB, find_user
from magent2.errors import AddressError, InvalidInput
from magent2.models.address import chat_topic, stream_topic
from magent2.models.json_types import JsonObject
from magent2.settings import Settings
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import RunFacts, SendKind, SendMark
from magent2.tools.messaging.mail import TEXT_MAX_CHARS, acting_user, checked_text, now_text, unchanged
from magent2.tools.messaging.rooted_files import folder_of, read_beneath
from magent2.tools.sending import Arguments, Payload, SendingTool, SendResult

REPLY_TO = "The id of a message of this conversation that this one answers."
CAPABILITIES = {"text": "text", "files": "files", "reply_to": "replies to a message"}


class UserDestination(BaseModel):
    """Where a user is reached: a connector, and the target that it knows them by, which `web` does not need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connector: str
    target: str
    user: str

    @property
    def shown(self) -> str:
        return self.connector if self.connector == WEB else f"{self.connector}:{self.target or self.user}"


class SayArguments(Arguments):
    text: str = Field(description="What to say to the user.")
    reply_to: str | None = Field(default=None, description=REPLY_TO)


class SayPayload(Payload):
    destination: UserDestination
    text: str
    reply_to: str | None = None
    created_at: str


class SayTool(SendingTool[SayArguments, SayPayload]):
    name = "say"
    description = "Send a message to the user you work for, through their connector, before your final answer."
    arguments = SayArguments
    payload = SayPayload

    async def prepare(self, log: Log, arguments: SayArguments, context: ToolExecutionContext) -> SayPayload:
        text = checked_text(arguments.text)
        destination = await find_destination(log, context.run, needs="text", reply_to=arguments.reply_to)
        return SayPayload(destination=destination, text=text, reply_to=arguments.reply_to, created_at=now_text())

    async def perform(self, log: Log, payload: SayPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        return await plan_send_to_user(log, payload.destination, _outgoing(payload, context.run, mark), context.run)

    def kind(self, payload: SayPayload) -> SendKind:
        return SendKind(payload.destination, payload.text)

    def target(self, payload: SayPayload) -> str:
        return payload.destination.shown


class FileArguments(Arguments):
    path: str = Field(description='A file in your own folder, by its path there: "report.pdf", "charts/may.png".')
    send_as: SendAs = Field(default="file", description="How the file is shown.")
    text: str | None = Field(default=None, description="A text to send with the file.")
    reply_to: str | None = Field(default=None, description=REPLY_TO)


class AttachmentFacts(Payload):
    name: str
    sha256: str
    media_type: str
    bytes: int
    send_as: SendAs

    def attachment(self) -> Attachment:
        return Attachment(**self.model_dump(exclude={"version"}))


class FilePayload(Payload):
    destination: UserDestination
    file: AttachmentFacts
    text: str
    reply_to: str | None = None
    created_at: str


class SendFile(SendingTool[FileArguments, FilePayload]):
    """`root` contains one folder per agent; `None` for the root in the settings.

    The content is stored when the call is made, so that what is sent later is what the file contained then.
    """

    name = "send_file"
    description = "Send a file from your own folder to the user you work for."
    arguments = FileArguments
    payload = FilePayload

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    async def prepare(self, log: Log, arguments: FileArguments, context: ToolExecutionContext) -> FilePayload:
        text = "" if arguments.text is None else checked_text(arguments.text, TEXT_MAX_CHARS)
        destination = await find_destination(log, context.run, needs="files", reply_to=arguments.reply_to)
        root = self._root or Settings.read().files_dir
        name, data = read_beneath(folder_of(root, context.run.agent), arguments.path)
        file = AttachmentFacts(
            name=name,
            sha256=await log.run(PutBlob(data)),
            media_type=media_type_of(name, data, arguments.send_as),
            bytes=len(data),
            send_as=arguments.send_as,
        )
        return FilePayload(
            destination=destination, file=file, text=text, reply_to=arguments.reply_to, created_at=now_text()
        )

    async def perform(self, log: Log, payload: FilePayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        message = _outgoing(payload, context.run, mark, (payload.file.attachment(),))
        return await plan_send_to_user(log, payload.destination, message, context.run)

    def target(self, payload: FilePayload) -> str:
        return payload.destination.shown

    def answer(self, payload: FilePayload, sent: SendResult) -> JsonObject:
        return {**super().answer(payload, sent), "sha256": payload.file.sha256, "bytes": payload.file.bytes}


async def find_destination(log: Log, run: RunFacts, needs: str, reply_to: str | None) -> UserDestination:
    """Where the user of the run is reached; `InvalidInput` if the connector does not support what is to be sent."""
    user = await acting_user(log, run)
    found = await look_up_entity(log, USERS, user)
    known = None if found is None or found.state.removed else found.state
    destination = UserDestination(
        connector=WEB if known is None else known.connector, target="" if known is None else known.target, user=user
    )
    connector = await find_connector(log, destination.connector)
    _check_capabilities(connector.state, (needs,) if reply_to is None else (needs, "reply_to"))
    if reply_to is not None and destination.connector == WEB:
        await _check_reply(log, run.conversation_id, reply_to)
    return destination


async def plan_send_to_user(log: Log, destination: UserDestination, message: OutgoingMessage, run: RunFacts) -> Append:
    """The append that sends a message to a user: an event for the page and, for other connectors, an outbox record."""
    here = await log.describe(stream_topic(run.conversation_id))
    if here[0].deleted:
        raise AddressError(f"{run.conversation_id!r} was deleted; nothing can be sent from it")
    connector = await find_connector(log, destination.connector)
    _check_capabilities(connector.state, ("files",) if message.attachments else ("text",))
    event = message_record(message, run.run_id)
    if destination.connector == WEB:
        return Append(records=(event,))
    user = await find_user(log, destination.user)
    if (user.state.connector, user.state.target) != (destination.connector, destination.target):
        raise InvalidInput(f"{destination.user} is no longer reached at {destination.shown}; send it again")
    conditions = (
        unchanged(CONNECTORS, destination.connector, connector),
        unchanged(USERS, destination.user, user),
    )
    return Append(records=(event, *queue_records(message, connector.state)), conditions=conditions)


def _outgoing(
    payload: SayPayload | FilePayload, run: RunFacts, mark: SendMark, attachments: tuple[Attachment, ...] = ()
) -> OutgoingMessage:
    return OutgoingMessage(
        key=mark.id,
        connector=payload.destination.connector,
        target=payload.destination.target,
        conversation_id=run.conversation_id,
        agent=run.agent,
        text=payload.text,
        reply_to=payload.reply_to,
        created_at=payload.created_at,
        attachments=attachments,
    )


def _check_capabilities(connector: ConnectorRegistration, needs: Sequence[str]) -> None:
    for need in needs:
        if not getattr(connector.capabilities, need):
            raise InvalidInput(
                f"the connector {connector.id!r} does not support {CAPABILITIES[need]}; send it in another way"
            )


async def _check_reply(log: Log, conversation: str, message_id: str) -> None:
    """Check that the message that is answered is in the conversation: one that came in, or one that was sent."""
    if not message_id:
        raise InvalidInput("reply_to must be the id of a message; leave it out to answer none")
    for topic in (chat_topic(conversation), stream_topic(conversation)):
        if await log.find(topic, message_id) is not None:
            return
    raise InvalidInput(f"reply_to: there is no message {message_id[:80]!r} in this conversation; leave it out")
