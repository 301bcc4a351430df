"""Where the user of a run is reached: their connector and, outside the session page, whom it knows them as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.connectors.builtin import message_record
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records
from magent2.directory.connectors import CONNECTORS, ConnectorRegistration, find_connector
from magent2.directory.entity import EntitySnapshot, look_up_entity
from magent2.directory.users import USERS, WEB, User, find_user
from magent2.errors import AddressError, InvalidInput
from magent2.models.address import chat_topic, stream_topic
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.messaging.common import acting_user, still


class UserDestination(BaseModel):
    """A connector and a target that it knows; the session page needs none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    connector: str
    target: str
    user: str

    @property
    def shown(self) -> str:
        return self.connector if self.connector == WEB else f"{self.connector}:{self.target or self.user}"


async def find_destination(log: Log, run: RunFacts, needs: Sequence[str], reply_to: str | None) -> UserDestination:
    """Where the run's user is reached, if that place can take what is to be sent."""
    user = await acting_user(log, run)
    found = await look_up_entity(log, USERS, user)
    known = _present(found)
    place = UserDestination(
        connector=WEB if known is None else known.connector, target="" if known is None else known.target, user=user
    )
    connector = await find_connector(log, place.connector)
    _check(connector.state, (*needs, "reply_to") if reply_to is not None else needs)
    if reply_to is not None and place.connector == WEB:
        await _check_reply(log, run.conversation_id, reply_to)
    return place


async def plan_send_to_user(
    log: Log, place: UserDestination, run: RunFacts, mark: SendMark, needs: Sequence[str], **what: Any
) -> Append:
    """The append that sends it: an event for the page, and, where the user is reached elsewhere, the outbox."""
    message = OutgoingMessage(
        key=mark.id,
        connector=place.connector,
        target=place.target,
        conversation_id=run.conversation_id,
        agent=run.agent,
        **what,
    )
    await _check_not_deleted(log, run.conversation_id)
    connector = await find_connector(log, place.connector)
    _check(connector.state, needs)
    event = message_record(message, run.run_id)
    if place.connector == WEB:
        return Append(records=(event,))
    user = await _find_reached_user(log, place)
    conditions = still(CONNECTORS, place.connector, connector), still(USERS, place.user, user)
    return Append(records=(event, *queue_records(message, connector.state)), conditions=conditions)


async def _find_reached_user(log: Log, place: UserDestination) -> EntitySnapshot[User]:
    """The user of a place outside; whoever has moved meanwhile is not written to at the old one."""
    found = await find_user(log, place.user)
    if (found.state.connector, found.state.target) != (place.connector, place.target):
        raise InvalidInput(f"{place.user} is not reached at {place.shown} any more; send it again")
    return found


def _present(found: EntitySnapshot[User] | None) -> User | None:
    return None if found is None or found.state.removed else found.state


def _check(connector: ConnectorRegistration, needs: Sequence[str]) -> None:
    words = {"text": "text", "files": "files", "reply_to": "replies to a message"}
    for need in needs:
        if not getattr(connector.capabilities, need):
            raise InvalidInput(f"the connector {connector.id!r} takes no {words[need]}; send it another way")


async def _check_reply(log: Log, conversation: str, message_id: str) -> None:
    """What is answered is a message that came in, or one that was said."""
    if not message_id:
        raise InvalidInput("reply_to must be the id of a message; leave it out to answer none")
    for topic in (chat_topic(conversation), stream_topic(conversation)):
        found = await log.find(topic, message_id)
        if found is not None:
            return
    raise InvalidInput(f"reply_to: there is no message {message_id[:80]!r} in this conversation; leave it out")


async def _check_not_deleted(log: Log, conversation: str) -> None:
    found = await log.describe(stream_topic(conversation))
    if found[0].deleted:
        raise AddressError(f"{conversation!r} was deleted; nobody is there to hear it")
