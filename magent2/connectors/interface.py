"""The port of a connector, which delivers messages to people outside the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, Protocol, TypeAlias

from magent2.directory.connectors import Capabilities
from magent2.models.json_types import JsonObject
from magent2.models.webhook_events import Notification

SendAs: TypeAlias = Literal["file", "photo", "audio", "video"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that is sent with a message. `sha256` is the name of the blob with its content."""

    name: str
    sha256: str
    media_type: str
    bytes: int
    send_as: SendAs = "file"

    def facts(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to a person. `key` is the same in every attempt to send it.

    With a `notification` it is a message to a program, about an event of a run, and has no text. `queued_ms` is the
    log clock when the event happened.
    """

    key: str
    connector: str
    target: str
    conversation_id: str
    agent: str
    text: str
    created_at: str
    reply_to: str | None = None
    attachments: tuple[Attachment, ...] = ()
    notification: Notification | None = None
    queued_ms: int | None = None

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> OutgoingMessage:
        """Parse the payload of an outbox record. Raises `TypeError` if a field is missing."""
        fields: JsonObject = {name: facts[name] for name in cls.__slots__ if name in facts}
        fields["attachments"] = tuple(Attachment(**item) for item in fields.get("attachments", ()))
        return cls(**fields)

    def facts(self) -> dict[str, object]:
        facts = asdict(self)
        for name in ("notification", "queued_ms"):  # few messages have them
            if facts[name] is None:
                del facts[name]
        return facts


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """The receiver's id of the message, if it returned one."""

    id: str | None = None


class Connector(Protocol):
    """Delivers messages to one external service.

    `send` returns when the receiver has the message. `files` has the content of each attachment by its `sha256`.
    `send` ends within its own time limit and raises nothing but:
    - `NotTaken`: nothing arrived, and the receiver will never accept this message;
    - `TransientError`: nothing arrived, and the message may be tried again;
    - `OutcomeUnknown`: the message may have arrived. Any other error counts as this one.
    If `capabilities.takes_key` is true, the receiver recognises `OutgoingMessage.key`, so sending a message a second
    time does no harm.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt: ...

    async def aclose(self) -> None: ...
