"""Ids of responses and of their items. An id names its session and message, so no table of ids is needed."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from magent2.errors import Magent2Error
from magent2.models.address import check_conversation_id
from magent2.models.principal import Principal

RESPONSE_PREFIX = "resp_"
MESSAGE_PREFIX, CALL_PREFIX, TOOL_PREFIX = "msg_", "fc_", "mtc_"  # of items
COMPLETION_PREFIX = "chatcmpl-"
CORE_MAX_CHARS = 1_000
SEPARATOR = "\x1f"


class BadId(Magent2Error, ValueError):
    """A text that is not an id of this API."""


@dataclass(frozen=True, slots=True)
class ResponseId:
    """A response: the session, the message that it answers, and the seq of that message in the stream of the session.

    A run that waits for outputs of the client's tools has several responses. `turn` is the turn whose calls the client
    has answered, or `None` for the first response.
    """

    session: str
    envelope: str
    seq: int
    turn: int | None = None

    def __str__(self) -> str:
        return RESPONSE_PREFIX + self.core

    @property
    def core(self) -> str:
        turn = "" if self.turn is None else str(self.turn)
        return _encoded(SEPARATOR.join((self.session, self.envelope, str(self.seq), turn)))

    def item(self, prefix: str, name: str) -> str:
        """The id of an item. `name` is unique in the response and has no dot."""
        return f"{prefix}{self.core}.{name}"

    @classmethod
    def parse(cls, text: str) -> ResponseId:
        """Raises `BadId` for a text that is not the id of a response."""
        return cls._of_core(text.removeprefix(RESPONSE_PREFIX)) if text.startswith(RESPONSE_PREFIX) else _refuse(text)

    @classmethod
    def of_item(cls, text: str) -> ResponseId:
        """The response of an item. Raises `BadId` for a text that is not the id of an item."""
        for prefix in (MESSAGE_PREFIX, CALL_PREFIX, TOOL_PREFIX):
            if text.startswith(prefix) and "." in text:
                return cls._of_core(text.removeprefix(prefix).partition(".")[0])
        return _refuse(text)

    @classmethod
    def _of_core(cls, core: str) -> ResponseId:
        try:
            if len(core) > CORE_MAX_CHARS:
                return _refuse(core)
            session, envelope, seq, turn = _decoded(core).split(SEPARATOR)
            check_conversation_id(session)
            if not envelope or not seq.isdecimal() or (turn and not turn.isdecimal()):
                return _refuse(core)
            return cls(session, envelope, int(seq), int(turn) if turn else None)
        except (ValueError, binascii.Error, Magent2Error):
            return _refuse(core)


def new_session_id(principal: Principal, key: str | None, unique: str) -> str:
    """The id of a new session: the same for the same owner and key, else a new one from `unique`."""
    if key is None:
        return f"resp-{unique}"
    text = SEPARATOR.join((principal.name, key))
    return "resp-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(core: str) -> str:
    return base64.b64decode(core + "=" * (-len(core) % 4), altchars=b"-_", validate=True).decode()


def _refuse(text: str) -> ResponseId:
    raise BadId(f"{text[:80]!r} is not an id of this API")
