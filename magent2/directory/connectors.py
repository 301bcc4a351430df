"""Registered connectors: where messages to users go besides the session page, and what each can deliver."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field, replace

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, LastSeqIs
from magent2.bus.records import NewRecord, Record
from magent2.directory.entity import (
    KEY_BYTES,
    PAGE,
    EntityKind,
    EntitySnapshot,
    change_entity,
    find_entity,
    list_entities,
)
from magent2.directory.users import WEB
from magent2.errors import ConditionFailed, InvalidInput, MalformedRecord, NameTaken, UnknownEntity
from magent2.mail.registration import registration_append
from magent2.models.address import entity_topic, relay_agent
from magent2.models.json_types import JsonMapping

CONNECTOR_MAX_CHARS = 64

CONNECTOR_LIST_TOPIC = entity_topic("connectors", "all")  # one record per connector; relays watch it

_ID = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{CONNECTOR_MAX_CHARS - 1}}}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a connector can deliver. `takes_key`: the receiver recognizes a repeated message by its key."""

    text: bool = True
    files: bool = False
    reply_to: bool = False
    takes_key: bool = False


@dataclass(frozen=True, slots=True)
class ConnectorRegistration:
    """A registered connector. `config` may contain secrets and is never shown."""

    id: str
    kind: str
    capabilities: Capabilities
    config: JsonMapping = field(default_factory=dict, repr=False)
    key: str = field(default="", repr=False)  # makes the names of its lanes hard to guess
    removed: bool = False


WEB_CONNECTOR = ConnectorRegistration(WEB, WEB, Capabilities(text=True, files=True, reply_to=True, takes_key=True))


def parse_connector(text: str) -> str:
    if not _ID.fullmatch(text):
        raise InvalidInput(f"{text[:80]!r} is not a connector id; use 1 to {CONNECTOR_MAX_CHARS} of a–z, 0–9 and _ . -")
    return text


async def register_connector(
    log: Log, entity: str, kind: str, capabilities: Capabilities, config: JsonMapping | None = None
) -> ConnectorRegistration:
    """Register a connector, and reserve the name of its relay lane so that no conversation can take it."""
    if parse_connector(entity) == WEB:
        raise InvalidInput(f"{WEB!r} is built in; choose another id")
    topic = CONNECTORS.topic(entity)
    facts = {
        "event": "registered",
        "kind": kind,
        "capabilities": {name: getattr(capabilities, name) for name in Capabilities.__slots__},
        "config": dict(config or {}),
        "key": secrets.token_hex(KEY_BYTES),
    }
    name = registration_append(relay_agent(entity), {"hidden": True})
    try:
        await log.append(
            Append(
                records=(
                    NewRecord(topic, facts),
                    NewRecord(CONNECTOR_LIST_TOPIC, {"connector": entity}),
                    *name.records,
                ),
                conditions=(LastSeqIs(topic, 0), *name.conditions),
            )
        )
    except ConditionFailed as error:
        raise NameTaken(f"connector {entity!r} exists, or its name is taken; choose another") from error
    found = await find_entity(log, CONNECTORS, entity)
    return found.state


async def unregister_connector(log: Log, entity: str) -> ConnectorRegistration:
    """Remove a connector. New messages are rejected, and the relay drops those that wait in its outbox."""
    return await change_entity(
        log, CONNECTORS, parse_connector(entity), lambda known: None if known.removed else {"event": "removed"}
    )


async def find_connector(log: Log, entity: str) -> EntitySnapshot[ConnectorRegistration]:
    """Return a connector. Raises `UnknownEntity` if it is not registered; `web` always is."""
    if entity == WEB:
        return EntitySnapshot(WEB_CONNECTOR, 0)
    try:
        found = await find_entity(log, CONNECTORS, parse_connector(entity))
    except UnknownEntity:
        raise UnknownEntity(f"there is no connector {entity!r}; register one with `magent2 connectors add`") from None
    if found.state.removed:
        raise UnknownEntity(f"the connector {entity!r} was removed")
    return found


async def list_connectors(log: Log) -> list[ConnectorRegistration]:
    every = await list_entities(log, CONNECTORS)
    return [WEB_CONNECTOR, *(known for known in every if not known.removed)]


async def list_connector_ids(log: Log) -> list[str]:
    """Return the ids of all connectors that were ever registered. Records that do not name one are skipped."""
    names: list[str] = []
    after = OLDEST
    while True:
        try:
            page = await log.read(CONNECTOR_LIST_TOPIC, after, PAGE)
        except MalformedRecord as error:
            after = error.seq
            continue
        found = (record.payload.get("connector") for record in page.records)
        names += [name for name in found if isinstance(name, str)]
        if not page.records or page.records[-1].seq >= page.last:
            return names
        after = page.records[-1].seq


def _begin(entity: str, record: Record) -> ConnectorRegistration:
    facts = record.payload
    return ConnectorRegistration(
        entity, facts["kind"], Capabilities(**facts["capabilities"]), facts["config"], facts["key"]
    )


CONNECTORS = EntityKind("connector", _begin, lambda known, _: replace(known, removed=True))
