"""Erasing a person: their keys, all conversations that are theirs, and what the directory knows of them."""

from __future__ import annotations

from dataclasses import dataclass

from magent2.bus.flow import Flow
from magent2.bus.operations import Delete, Topics
from magent2.bus.records import TopicList
from magent2.directory.forgetting import ending_user, forgetting_user
from magent2.directory.keys import KEYS, listing_keys, revoking_key
from magent2.directory.users import PRINCIPAL_PREFIX, check_user_id
from magent2.errors import InvalidInput
from magent2.models.address import check_name, checked_topic
from magent2.sessions.store import deleting

PAGE = 100


@dataclass(frozen=True, slots=True)
class Erased:
    """What there was."""

    keys: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()  # of the directory, by their logs

    def __bool__(self) -> bool:
        return bool(self.keys or self.conversations or self.entries)


def erasing_user(name: str) -> Flow[Erased]:
    """Erase a user. Keys end first, so that nothing new is begun; an erasure that was cut short just starts again."""
    check_name(name, "user")
    user = _known_as(name)
    keys = [key.id for key in (yield from listing_keys()) if name in key.scopes]
    for key in keys:
        yield from revoking_key(key)
    if user is not None:
        yield from ending_user(user)
    conversations: list[str] = []
    while page := (yield from _owned(name)):
        for conversation in page:
            yield from deleting(conversation)
        conversations += page
    if keys:
        yield Delete(tuple(map(KEYS.topic, keys)))
    entries = [] if user is None else (yield from forgetting_user(user))
    return Erased(tuple(keys), tuple(conversations), tuple(entries))


def _known_as(name: str) -> str | None:
    """The user's id in the directory; `None` for a name that nobody can have there."""
    try:
        return check_user_id(name) if name.startswith(PRINCIPAL_PREFIX) else None
    except InvalidInput:
        return None


def _owned(name: str) -> Flow[list[str]]:
    found: TopicList = yield Topics("stream:", owner=name, limit=PAGE)
    return [checked_topic(info.topic)[1] for info in found.topics]
