"""The port of a connector: a place outside the log that takes messages for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias

from magent2.directory.connectors import Capabilities

SendAs: TypeAlias = Literal["file", "photo", "audio", "video"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes along, by the hash of its content; the content is a blob."""

    name: str
    sha256: str
    media_type: str
    bytes: int
    send_as: SendAs = "file"

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message for a person. `key` is the same in every attempt to send it; `files` are the attachments' contents."""

    key: str
    connector: str
    target: str
    conversation_id: str
    agent: str
    text: str
    created_at: str
    reply_to: str | None = None
    attachments: tuple[Attachment, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> OutgoingMessage:
        """As the outbox keeps it."""
        names = cls.__slots__
        attachments = tuple(Attachment(**item) for item in facts.get("attachments", ()))
        chosen = {name: facts[name] for name in names if name in facts and name != "attachments"}
        return cls(**chosen, attachments=attachments)

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeliveryReceipt:
    """What the receiver calls the message, if it says."""

    id: str | None = None


class Connector(Protocol):
    """Sends messages to one place.

    `send` returns once the receiver has the message. Otherwise it raises
    - `NotTaken`: the receiver will never take it as it is; nothing arrived;
    - `TransientError`: nothing arrived, it may be tried again;
    - `OutcomeUnknown`: it may have arrived.
    Nothing else, and it ends within its own time limit. Where `capabilities.takes_key` is true, the receiver knows
    `Outgoing.key` again, so that sending a second time does no harm.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt: ...

    async def aclose(self) -> None: ...
