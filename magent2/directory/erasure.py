"""Erasing a person: their keys and all conversations that are theirs."""

from __future__ import annotations

from dataclasses import dataclass

from magent2.bus.flow import Flow
from magent2.bus.operations import Delete, Topics
from magent2.bus.records import TopicList
from magent2.directory.keys import KEYS, listing_keys, revoking_key
from magent2.models.address import check_name, checked_topic
from magent2.sessions.store import deleting

PAGE = 100


@dataclass(frozen=True, slots=True)
class Erased:
    """What there was."""

    keys: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys or self.conversations)


def erasing_user(name: str) -> Flow[Erased]:
    """Erase a user. Keys end first, so that nothing new is begun; an erasure that was cut short just starts again."""
    check_name(name, "user")
    keys = [key.id for key in (yield from listing_keys()) if name in key.scopes]
    for key in keys:
        yield from revoking_key(key)
    conversations: list[str] = []
    while page := (yield from _owned(name)):
        for conversation in page:
            yield from deleting(conversation)
        conversations += page
    if keys:
        yield Delete(tuple(map(KEYS.topic, keys)))
    return Erased(tuple(keys), tuple(conversations))


def _owned(name: str) -> Flow[list[str]]:
    found: TopicList = yield Topics("stream:", owner=name, limit=PAGE)
    return [checked_topic(info.topic)[1] for info in found.topics]
