"""Where the user of a run is reached: their connector and, outside the session page, whom it knows them as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from magent2.bus.flow import Flow
from magent2.bus.operations import Append, Describe, Find
from magent2.bus.records import Record, TopicInfo
from magent2.connectors.builtin import shown
from magent2.connectors.interface import Outgoing
from magent2.connectors.outbox import queued
from magent2.directory.connectors import CONNECTORS, Registration, finding_connector
from magent2.directory.entity import Found, looking
from magent2.directory.users import USERS, WEB, User, finding_user
from magent2.errors import AddressError, InvalidInput
from magent2.models.address import chat_topic, stream_topic
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.messaging.common import acting_user, still


class Place(BaseModel):
    """A connector and a target that it knows; the session page needs none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connector: str
    target: str
    user: str

    @property
    def shown(self) -> str:
        return self.connector if self.connector == WEB else f"{self.connector}:{self.target or self.user}"


def finding_place(run: RunFacts, needs: Sequence[str], reply_to: str | None) -> Flow[Place]:
    """Where the run's user is reached, if that place can take what is to be sent."""
    user = yield from acting_user(run)
    found = yield from looking(USERS, user)
    known = _present(found)
    place = Place(
        connector=WEB if known is None else known.connector, target="" if known is None else known.target, user=user
    )
    connector = yield from finding_connector(place.connector)
    _check(connector.state, (*needs, "reply_to") if reply_to is not None else needs)
    if reply_to is not None and place.connector == WEB:
        yield from _check_reply(run.conversation_id, reply_to)
    return place


def sending_to(place: Place, run: RunFacts, mark: SendMark, needs: Sequence[str], **what: Any) -> Flow[Append]:
    """The append that sends it: an event for the page, and, where the user is reached elsewhere, the outbox."""
    message = Outgoing(
        key=mark.id,
        connector=place.connector,
        target=place.target,
        conversation_id=run.conversation_id,
        agent=run.agent,
        **what,
    )
    yield from _check_there(run.conversation_id)
    connector = yield from finding_connector(place.connector)
    _check(connector.state, needs)
    event = shown(message, run.run_id)
    if place.connector == WEB:
        return Append(records=(event,))
    user = yield from _reached(place)
    conditions = still(CONNECTORS, place.connector, connector), still(USERS, place.user, user)
    return Append(records=(event, *queued(message, connector.state)), conditions=conditions)


def _reached(place: Place) -> Flow[Found[User]]:
    """The user of a place outside; whoever has moved meanwhile is not written to at the old one."""
    found = yield from finding_user(place.user)
    if (found.state.connector, found.state.target) != (place.connector, place.target):
        raise InvalidInput(f"{place.user} is not reached at {place.shown} any more; send it again")
    return found


def _present(found: Found[User] | None) -> User | None:
    return None if found is None or found.state.removed else found.state


def _check(connector: Registration, needs: Sequence[str]) -> None:
    words = {"text": "text", "files": "files", "reply_to": "replies to a message"}
    for need in needs:
        if not getattr(connector.capabilities, need):
            raise InvalidInput(f"the connector {connector.id!r} takes no {words[need]}; send it another way")


def _check_reply(conversation: str, message_id: str) -> Flow[None]:
    """What is answered is a message that came in, or one that was said."""
    if not message_id:
        raise InvalidInput("reply_to must be the id of a message; leave it out to answer none")
    for topic in (chat_topic(conversation), stream_topic(conversation)):
        found: Record | None = yield Find(topic, message_id)
        if found is not None:
            return
    raise InvalidInput(f"reply_to: there is no message {message_id[:80]!r} in this conversation; leave it out")


def _check_there(conversation: str) -> Flow[None]:
    found: tuple[TopicInfo, ...] = yield Describe((stream_topic(conversation),))
    if found[0].deleted:
        raise AddressError(f"{conversation!r} was deleted; nobody is there to hear it")
