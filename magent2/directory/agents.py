"""Roles of agents: foreground agents talk with a user, background agents do not, sub-agents have a parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from magent2.bus.log import Log
from magent2.directory.entity import EntityKind, change_or_create_entity, list_entities, look_up_entity
from magent2.errors import ConditionFailed, InvalidInput
from magent2.models.address import check_name
from magent2.models.json_types import JsonMapping

ANCESTORS_MAX = 16

Role: TypeAlias = Literal["foreground", "background", "sub"]


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """The role of an agent. The default is a background agent without a parent."""

    name: str
    role: Role = "background"
    parent: str | None = None
    removed: bool = False


def check_role(name: str, role: str, parent: str | None) -> AgentEntry:
    """Return the entry of an agent with this role. Raises `InvalidInput` if the role or the parent is not valid."""
    check_name(name, "agent name")
    if role not in get_args(Role):
        raise InvalidInput(f"{role[:80]!r} is not a role; use one of {', '.join(get_args(Role))}")
    if (role == "sub") != (parent is not None):
        raise InvalidInput("a sub-agent has a parent, and no other agent has one")
    if parent is not None:
        check_name(parent, "agent name")
    return AgentEntry(name, cast(Role, role), parent)


async def set_agent_role(log: Log, name: str, role: str, parent: str | None = None) -> AgentEntry:
    """Set the role of an agent."""
    wanted = check_role(name, role, parent)
    await _check_ancestors(log, name, parent)
    facts = {"event": "placed", "role": role, "parent": parent}
    return await change_or_create_entity(log, AGENTS, name, lambda now: None if now == wanted else facts)


async def remove_agent(log: Log, name: str) -> AgentEntry:
    """Remove an agent. Messages to it are rejected until it gets a role again."""
    entry = await find_agent(log, name)
    facts = {"event": "removed", "role": entry.role, "parent": entry.parent}
    return await change_or_create_entity(
        log, AGENTS, name, lambda now: None if now is not None and now.removed else facts
    )


async def find_agent(log: Log, name: str) -> AgentEntry:
    found = await look_up_entity(log, AGENTS, name)
    return AgentEntry(name) if found is None else found.state


async def list_agents(log: Log) -> list[AgentEntry]:
    return await list_entities(log, AGENTS)


async def _check_ancestors(log: Log, name: str, parent: str | None) -> None:
    """Raise if `name` would become its own ancestor."""
    above = parent
    for _ in range(ANCESTORS_MAX):
        if above is None:
            return
        if above == name:
            raise InvalidInput(f"{name!r} would be its own ancestor; choose another parent")
        entry = await find_agent(log, above)
        above = entry.parent
    raise ConditionFailed(f"{name!r} would have more than {ANCESTORS_MAX} ancestors; choose another parent")


def _read(entity: str, facts: JsonMapping) -> AgentEntry:
    return AgentEntry(entity, facts["role"], facts["parent"], facts["event"] == "removed")


AGENTS: EntityKind[AgentEntry] = EntityKind(
    "agent",
    begin=lambda name, record: _read(name, record.payload),
    apply=lambda entry, record: _read(entry.name, record.payload),
)
