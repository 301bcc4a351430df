"""Which agent is meant: by name, as a contact of the swarm, as the parent, or as whoever wrote last."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from magent2.bus.flow import Flow
from magent2.bus.operations import Condition, Describe, Read
from magent2.bus.records import Page, TopicInfo
from magent2.directory.agents import AGENTS, finding_agent
from magent2.directory.entity import looking
from magent2.directory.swarms import (
    CONTACT,
    CONTACTS,
    SWARM,
    SWARMS,
    check_may_answer,
    contact_id,
    finding_contact,
    finding_swarm,
)
from magent2.directory.users import USERS, finding_by_nametag, finding_user
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


def finding_target(run: RunFacts, named: str | None) -> Flow[AgentTarget]:
    if named is not None and named.strip().startswith("@"):
        target = yield from _contact(run, named.strip())
    elif named is not None:
        name = check_name(named.strip().removeprefix(AGENT_PREFIX), "agent name")
        target = AgentTarget(agent=name, conversation_id=run.conversation_id)
    else:
        target = yield from _unnamed(run)
    if target.user is None:
        yield from _checking_known(run, target.agent)
    return target


def _checking_known(run: RunFacts, agent: str) -> Flow[None]:
    """Somebody else who exists; whether it was retired is looked at for all mail."""
    if agent == run.agent:
        raise InvalidInput("that is yourself; name another agent")
    known: tuple[TopicInfo, ...] = yield Describe((agent_topic(agent),))
    if not known[0].last and (yield from looking(AGENTS, agent)) is None:
        raise UnknownAgent(f"there is no agent {agent!r}; name one that is served")


def checking_contact(target: AgentTarget) -> Flow[list[Condition]]:
    """That a swarm may still answer its contact, and what must stay so until it has."""
    if target.swarm is None or target.user is None:
        return []
    swarm = yield from finding_swarm(target.swarm)
    contact = yield from finding_contact(target.swarm, target.user)
    check_may_answer(swarm.state, target.user, None if contact is None else contact.state)
    user = yield from finding_user(target.user)
    conditions: list[Condition] = [still(SWARMS, target.swarm, swarm), still(USERS, target.user, user)]
    if contact is not None:
        conditions.append(still(CONTACTS, contact_id(target.swarm, target.user), contact))
    return conditions


def _unnamed(run: RunFacts) -> Flow[AgentTarget]:
    own = yield from finding_agent(run.agent)
    if own.parent is not None:
        return AgentTarget(agent=own.parent, conversation_id=run.conversation_id)
    here: tuple[TopicInfo, ...] = yield Describe((stream_topic(run.conversation_id),))
    if here[0].head.get(SWARM):
        return (yield from _answering(str(here[0].head[SWARM]), str(here[0].head[CONTACT])))
    page: Page = yield Read(chat_topic(run.conversation_id), None, LAST_MAIL)
    for record in reversed(page.records):
        sender = str(record.payload.get("sender", ""))
        is_mine = record.payload.get("recipient") == f"{AGENT_PREFIX}{run.agent}"
        if is_mine and sender.startswith(AGENT_PREFIX) and sender != f"{AGENT_PREFIX}{run.agent}":
            name = sender.removeprefix(AGENT_PREFIX)
            return AgentTarget(agent=name, conversation_id=run.conversation_id)
    raise InvalidInput("you have no parent, and no agent has written to you here; name the agent")


def _contact(run: RunFacts, nametag: str) -> Flow[AgentTarget]:
    """A contact of the swarm that this run works for."""
    here: tuple[TopicInfo, ...] = yield Describe((stream_topic(run.conversation_id),))
    swarm = here[0].head.get(SWARM)
    if not swarm:
        raise NotAContact(f"{nametag} can be written to by a swarm that they have written to; try `friend_send`")
    user = yield from finding_by_nametag(nametag)
    return (yield from _answering(str(swarm), user.state.id))


def _answering(nametag: str, user: str) -> Flow[AgentTarget]:
    swarm = yield from finding_swarm(nametag)
    found = yield from finding_contact(nametag, user)
    contact = check_may_answer(swarm.state, user, None if found is None else found.state)
    return AgentTarget(agent=contact.agent, conversation_id=contact.conversation, swarm=nametag, user=user)
