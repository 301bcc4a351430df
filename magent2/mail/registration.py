"""Registration of agents: a record in `agent:*` that reserves the name, so that no conversation can use it."""

from __future__ import annotations

from collections.abc import Mapping

from magent2.bus.log import Log
from magent2.bus.operations import Append, HeadIs, LastSeqIs
from magent2.bus.records import NewRecord
from magent2.errors import ConditionFailed, NameTaken
from magent2.mail.headers import ACTIVE_AGENT
from magent2.models.address import agent_topic, check_name, stream_topic


async def register_agent(log: Log, agent: str, facts: Mapping[str, object] | None = None) -> None:
    """Reserve an agent's name. Raises `NameTaken` if a conversation has that id."""
    try:
        await log.run(registration_append(agent, facts))
    except ConditionFailed as error:
        raise NameTaken(f"a conversation is called {agent!r}; give the agent another name") from error


def registration_append(agent: str, facts: Mapping[str, object] | None = None) -> Append:
    """The append that reserves an agent's name; a repeat changes nothing."""
    check_name(agent, "agent name")
    stream_name = stream_topic(agent)
    record = NewRecord(agent_topic(agent), {"agent": agent, **(facts or {})}, id="enlisted", digest=agent)
    return Append(records=(record,), conditions=(LastSeqIs(stream_name, 0), HeadIs(stream_name, ACTIVE_AGENT, None)))
