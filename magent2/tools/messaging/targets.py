"""Which agent is meant: by name, as a contact of the swarm, as the parent, or as whoever wrote last."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from magent2.bus.log import Log
from magent2.bus.operations import Condition
from magent2.directory.agents import AGENTS, find_agent
from magent2.directory.entity import look_up_entity
from magent2.directory.swarms import (
    CONTACT,
    CONTACTS,
    SWARM,
    SWARMS,
    check_may_answer,
    contact_id,
    find_contact,
    find_swarm,
)
from magent2.directory.users import USERS, find_user, find_user_by_nametag
from magent2.errors import InvalidInput, NotAContact, UnknownAgent
from magent2.models.address import agent_topic, chat_topic, check_name, stream_topic
from magent2.tools.interface import RunFacts
from magent2.tools.messaging.common import still

LAST_MAIL = 100  # of the conversation, looked through for whoever wrote last
AGENT_PREFIX = "agent:"


class AgentTarget(BaseModel):
    """An agent and where it is written to. `swarm` and `user`: a contact that the swarm answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str
    conversation_id: str
    swarm: str | None = None
    user: str | None = None

    @property
    def shown(self) -> str:
        return f"agent:{self.agent}" if self.user is None else f"agent:{self.agent} of {self.user}"


async def find_target(log: Log, run: RunFacts, named: str | None) -> AgentTarget:
    if named is not None and named.strip().startswith("@"):
        target = await _contact_target(log, run, named.strip())
    elif named is not None:
        name = check_name(named.strip().removeprefix(AGENT_PREFIX), "agent name")
        target = AgentTarget(agent=name, conversation_id=run.conversation_id)
    else:
        target = await _default_target(log, run)
    if target.user is None:
        await _check_known(log, run, target.agent)
    return target


async def _check_known(log: Log, run: RunFacts, agent: str) -> None:
    """Somebody else who exists; whether it was retired is looked at for all mail."""
    if agent == run.agent:
        raise InvalidInput("that is yourself; name another agent")
    known = await log.describe(agent_topic(agent))
    if not known[0].last and (await look_up_entity(log, AGENTS, agent)) is None:
        raise UnknownAgent(f"there is no agent {agent!r}; name one that is served")


async def check_contact(log: Log, target: AgentTarget) -> list[Condition]:
    """That a swarm may still answer its contact, and what must stay so until it has."""
    if target.swarm is None or target.user is None:
        return []
    swarm = await find_swarm(log, target.swarm)
    contact = await find_contact(log, target.swarm, target.user)
    check_may_answer(swarm.state, target.user, None if contact is None else contact.state)
    user = await find_user(log, target.user)
    conditions: list[Condition] = [still(SWARMS, target.swarm, swarm), still(USERS, target.user, user)]
    if contact is not None:
        conditions.append(still(CONTACTS, contact_id(target.swarm, target.user), contact))
    return conditions


async def _default_target(log: Log, run: RunFacts) -> AgentTarget:
    own = await find_agent(log, run.agent)
    if own.parent is not None:
        return AgentTarget(agent=own.parent, conversation_id=run.conversation_id)
    here = await log.describe(stream_topic(run.conversation_id))
    if here[0].head.get(SWARM):
        return await _answer_target(log, str(here[0].head[SWARM]), str(here[0].head[CONTACT]))
    page = await log.read(chat_topic(run.conversation_id), None, LAST_MAIL)
    for record in reversed(page.records):
        sender = str(record.payload.get("sender", ""))
        is_mine = record.payload.get("recipient") == f"{AGENT_PREFIX}{run.agent}"
        if is_mine and sender.startswith(AGENT_PREFIX) and sender != f"{AGENT_PREFIX}{run.agent}":
            name = sender.removeprefix(AGENT_PREFIX)
            return AgentTarget(agent=name, conversation_id=run.conversation_id)
    raise InvalidInput("you have no parent, and no agent has written to you here; name the agent")


async def _contact_target(log: Log, run: RunFacts, nametag: str) -> AgentTarget:
    """A contact of the swarm that this run works for."""
    here = await log.describe(stream_topic(run.conversation_id))
    swarm = here[0].head.get(SWARM)
    if not swarm:
        raise NotAContact(f"{nametag} can be written to by a swarm that they have written to; try `friend_send`")
    user = await find_user_by_nametag(log, nametag)
    return await _answer_target(log, str(swarm), user.state.id)


async def _answer_target(log: Log, nametag: str, user: str) -> AgentTarget:
    swarm = await find_swarm(log, nametag)
    found = await find_contact(log, nametag, user)
    contact = check_may_answer(swarm.state, user, None if found is None else found.state)
    return AgentTarget(agent=contact.agent, conversation_id=contact.conversation, swarm=nametag, user=user)
