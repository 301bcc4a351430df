"""Registration of agents: a record in `agent:*` that reserves the name, so that no conversation can use it."""

from __future__ import annotations

from collections.abc import Mapping

from magent2.bus.log import Log
from magent2.bus.operations import Append, HeadIs, LastSeqIs
from magent2.bus.records import NewRecord
from magent2.errors import ConditionFailed, NameTaken
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
    stream_name = stream_topic(agent)
    record = NewRecord(agent_topic(agent), {"agent": agent, **(facts or {})}, id="enlisted", digest=agent)
    return Append(records=(record,), conditions=(LastSeqIs(stream_name, 0), HeadIs(stream_name, ACTIVE_AGENT, None)))
