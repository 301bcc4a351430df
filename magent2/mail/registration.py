"""Registration of agents: a record in `agent:*` that reserves the name, so that no conversation can use it."""

from __future__ import annotations

from collections.abc import Mapping

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, HeadIs, LastSeqIs
from magent2.bus.records import NewRecord
from magent2.errors import ConditionFailed, NameTaken, UnknownAgent
from magent2.mail.headers import ACTIVE_AGENT, OWNER
from magent2.models.address import agent_topic, check_name, stream_topic


async def register_agent(log: Log, agent: str, facts: Mapping[str, object] | None = None) -> None:
    """Reserve an agent's name. Raises `NameTaken` if a conversation has that id."""
    try:
        await log.run(registration_append(agent, facts))
    except ConditionFailed as error:
        (stream,) = await log.describe(stream_topic(agent))
        owner = stream.head.get(OWNER)
        whose = f" of {owner}" if isinstance(owner, str) else " that was deleted" if stream.deleted else ""
        raise NameTaken(
            f"a conversation{whose} is called {agent!r}, and names are never used again, even after a deletion;"
            " give the agent another name in the agents file"
        ) from error


def registration_append(agent: str, facts: Mapping[str, object] | None = None) -> Append:
    """The append that reserves an agent's name; a repeat changes nothing."""
    check_name(agent, "agent name")
    record = NewRecord(agent_topic(agent), {"agent": agent, **(facts or {})}, id="enlisted", digest=agent)
    return Append(records=(record,), conditions=no_conversation(agent))


async def is_registered(log: Log, agent: str) -> bool:
    """Return whether an agent is registered. Raises `UnknownAgent` if a conversation has that id: no agent can."""
    found, stream = await log.describe(agent_topic(agent), stream_topic(agent))
    if not found.last and (stream.last or stream.head):
        raise UnknownAgent(f"there is no agent {agent[:80]!r}")
    return bool(found.last)


def not_registered(agent: str) -> tuple[Condition, ...]:
    """Conditions under which `is_registered` returns false."""
    return LastSeqIs(agent_topic(agent), 0), *no_conversation(agent)


def no_conversation(name: str) -> tuple[Condition, ...]:
    """Conditions under which no conversation has a name."""
    return LastSeqIs(stream_topic(name), 0), HeadIs(stream_topic(name), ACTIVE_AGENT, None)
