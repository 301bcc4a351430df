"""`say` and `send_file`: messages to the user that a run acts for, through their connector.

A user is reached on the session page (the connector `web`), or through a connector to another service, under the target
by which that service knows them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

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
from magent2.settings import Settings
from magent2.tools.definition import ToolAnswer, ToolExecutionContext
from magent2.tools.interface import RunFacts, SendKind, SendMark
from magent2.tools.messaging.mail import TEXT_MAX_CHARS, acting_user, check_text, now_text, unchanged
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
    def label(self) -> str:
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
        text = check_text(arguments.text)
        destination = await find_destination(log, context.run, needs="text", reply_to=arguments.reply_to)
        return SayPayload(destination=destination, text=text, reply_to=arguments.reply_to, created_at=now_text())

    async def perform(self, log: Log, payload: SayPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        return await plan_send_to_user(log, payload.destination, _outgoing(payload, context.run, mark), context.run)

    def kind(self, payload: SayPayload) -> SendKind:
        return SendKind(payload.destination, payload.text)

    def target(self, payload: SayPayload) -> str:
        return payload.destination.label


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
        text = "" if arguments.text is None else check_text(arguments.text, TEXT_MAX_CHARS)
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
        return payload.destination.label

    def answer(self, payload: FilePayload, result: SendResult) -> ToolAnswer:
        return {**super().answer(payload, result), "sha256": payload.file.sha256, "bytes": payload.file.bytes}


async def find_destination(log: Log, run: RunFacts, needs: str, reply_to: str | None) -> UserDestination:
    """Where the user of the run is reached; `InvalidInput` if the connector does not support what is to be sent."""
    user = await acting_user(log, run)
    entry = await look_up_entity(log, USERS, user)
    if entry is None or entry.state.removed:
        destination = UserDestination(connector=WEB, target="", user=user)
    else:
        destination = UserDestination(connector=entry.state.connector, target=entry.state.target, user=user)
    connector = await find_connector(log, destination.connector)
    _check_capabilities(connector.state, (needs,) if reply_to is None else (needs, "reply_to"))
    if reply_to is not None and destination.connector == WEB:
        await _check_reply(log, run.conversation_id, reply_to)
    return destination


async def plan_send_to_user(log: Log, destination: UserDestination, message: OutgoingMessage, run: RunFacts) -> Append:
    """The append that sends a message to a user: an event for the page and, for other connectors, an outbox record."""
    (stream,) = await log.describe(stream_topic(run.conversation_id))
    if stream.deleted:
        raise AddressError(f"{run.conversation_id!r} was deleted; nothing can be sent from it")
    connector = await find_connector(log, destination.connector)
    _check_capabilities(connector.state, ("files",) if message.attachments else ("text",))
    event = message_record(message, run.run_id)
    if destination.connector == WEB:
        return Append(records=(event,))
    user = await find_user(log, destination.user)
    if (user.state.connector, user.state.target) != (destination.connector, destination.target):
        raise InvalidInput(f"{destination.user} is no longer reached at {destination.label}; send it again")
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
        raise InvalidInput("reply_to must be the id of a message; omit it if this is not a reply")
    for topic in (chat_topic(conversation), stream_topic(conversation)):
        if await log.find(topic, message_id) is not None:
            return
    raise InvalidInput(f"reply_to: there is no message {message_id[:80]!r} in this conversation; omit it")


# --- files below the folder of an agent ------------------------------------------------------------------------------
# Each step of a path is opened relative to the step before it, without following links. A link or a rename between a
# check and the read can therefore not lead outside the folder.

FILE_MAX_BYTES = 8 << 20
PATH_MAX_CHARS = 1000
STEPS_MAX = 32

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def folder_of(root: Path, agent: str) -> Path:
    """The folder of an agent. Its name is quoted, so that it is always a single path step."""
    name = quote(agent, safe=" @+")
    return root / (name.replace(".", "%2E") if set(name) <= {"."} else name)


def read_beneath(folder: Path, path: str) -> tuple[str, bytes]:
    """Return name and content of a regular file; `InvalidInput` says what is wrong with the path."""
    steps = _steps(path)
    try:
        where = os.open(folder, _FOLDER)
    except OSError as error:
        raise InvalidInput(f"you have no folder to send files from ({error.strerror})") from error
    try:
        for step in steps[:-1]:
            inner = os.open(step, _FOLDER, dir_fd=where)
            os.close(where)
            where = inner
        return steps[-1], _content(os.open(steps[-1], _FILE, dir_fd=where), path)
    except OSError as error:
        raise InvalidInput(f"{path[:80]!r} cannot be sent: {_reason(error)}") from error
    finally:
        os.close(where)


def _steps(path: str) -> list[str]:
    if not path or len(path) > PATH_MAX_CHARS or not path.isprintable():
        raise InvalidInput(f"a path must have 1 to {PATH_MAX_CHARS} printable characters")
    if path.startswith(("/", "~")) or "\\" in path:
        raise InvalidInput(f"{path[:80]!r} is not a path below your folder; use a relative path with '/'")
    steps = path.split("/")
    if any(step in ("", ".", "..") for step in steps) or len(steps) > STEPS_MAX:
        raise InvalidInput(f"{path[:80]!r} is not a plain path below your folder; name folders and a file")
    return steps


def _content(file: int, path: str) -> bytes:
    with os.fdopen(file, "rb") as opened:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidInput(f"{path[:80]!r} is not a file")
        if facts.st_nlink != 1:
            raise InvalidInput(f"{path[:80]!r} has other hard links, and may belong to another user; copy it first")
        data = opened.read(FILE_MAX_BYTES + 1)
    if not data:
        raise InvalidInput(f"{path[:80]!r} is empty")
    if len(data) > FILE_MAX_BYTES:
        raise InvalidInput(f"{path[:80]!r} is larger than {FILE_MAX_BYTES} bytes; send a smaller file")
    return data


def _reason(error: OSError) -> str:
    """Why a step cannot be opened. A link gives `ELOOP` or `ENOTDIR`; the text does not say where it points."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, PermissionError):
        return "it cannot be read"
    return "a step of the path is a link or not a folder"
