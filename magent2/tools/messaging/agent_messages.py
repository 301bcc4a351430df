"""`send_agent_message`: a message to another agent.

The recipient is an agent by name, or a contact of the swarm that the run works for. The default is the parent of the
sending agent, else the contact that the swarm talks with in this conversation, else the agent that wrote last. A long
text is sent as an attachment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, PutBlob, Write
from magent2.connectors.interface import Attachment
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
from magent2.models.json_types import JsonObject
from magent2.sessions.steering import STEER_MAX_CHARS
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.messaging.mail import AgentMail, check_text, now_text, plan_mail, sender_of, unchanged
from magent2.tools.sending import Arguments, Payload, SendingTool

AGENT_PREFIX = "agent:"
LAST_MAIL = 100  # newest messages of the conversation that are searched for the agent that wrote last
ATTACH_OVER_CHARS = 8_000  # a longer text is attached
EXCERPT_CHARS = 2_000  # the part of an attached text that is in the message
ATTACHED_MAX_CHARS = 1_000_000
ATTACHED_NAME = "message.txt"


class AgentTarget(BaseModel):
    """An agent and the conversation in which it is written to. `swarm` and `user` name a contact of a swarm."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: str
    conversation_id: str
    swarm: str | None = None
    user: str | None = None

    @property
    def label(self) -> str:
        return f"agent:{self.agent}" if self.user is None else f"agent:{self.agent} of {self.user}"


class AgentMessageArguments(Arguments):
    text: str = Field(description="What to tell the agent. A long text is sent as an attachment.")
    agent: str | None = Field(
        default=None,
        description='The name of the agent, or, in a swarm, the "@nametag" of a contact. Defaults to your parent, or'
        " else to the agent that wrote to you last.",
    )
    steering: bool = Field(default=False, description="Send immediately, into the current run of the agent.")

    @property
    def urgent(self) -> bool:
        return self.now or self.steering


class AgentMessagePayload(Payload):
    target: AgentTarget
    text: str
    attachments: list[JsonObject] = Field(default_factory=list)
    steering: bool = False
    created_at: str


class SendAgentMessage(SendingTool[AgentMessageArguments, AgentMessagePayload]):
    name = "send_agent_message"
    description = (
        "Send a message to another agent: by name, to your parent, or to the agent that wrote to you last."
        " With steering=True it is sent immediately and reaches the current run of the agent."
    )
    arguments = AgentMessageArguments
    payload = AgentMessagePayload

    async def prepare(
        self, log: Log, arguments: AgentMessageArguments, context: ToolExecutionContext
    ) -> AgentMessagePayload:
        text = check_text(arguments.text, ATTACHED_MAX_CHARS)
        target = await find_target(log, context.run, arguments.agent)
        limit = STEER_MAX_CHARS if arguments.steering else ATTACH_OVER_CHARS
        message_text, attachments = await attach_long_text(log, text, limit)
        return AgentMessagePayload(
            target=target,
            text=message_text,
            attachments=attachments,
            steering=arguments.steering,
            created_at=now_text(),
        )

    async def perform(
        self, log: Log, payload: AgentMessagePayload, context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        run, target = context.run, payload.target
        conditions = await check_contact(log, target)
        metadata: dict[str, object] = {"origin": {"agent": run.agent, "conversation_id": run.conversation_id}}
        if payload.attachments:
            metadata["attachments"] = payload.attachments
        mail = AgentMail(
            conversation=target.conversation_id,
            agent=target.agent,
            owner=run.principal if target.user is None else f"user:{target.user}",
            sender=sender_of(run, target.agent, target.conversation_id),
            text=payload.text,
            created_at=payload.created_at,
            metadata=metadata,
            steer=payload.steering,
        )
        append = with_attachments(await plan_mail(log, mail, run, mark), payload.attachments)
        return append.merge(Write(conditions=tuple(conditions)))

    def target(self, payload: AgentMessagePayload) -> str:
        return payload.target.label


async def find_target(log: Log, run: RunFacts, recipient: str | None) -> AgentTarget:
    """The agent that a message is for: by `@nametag`, by name, or the default."""
    if recipient is not None and recipient.strip().startswith("@"):
        target = await _contact_target(log, run, recipient.strip())
    elif recipient is not None:
        name = check_name(recipient.strip().removeprefix(AGENT_PREFIX), "agent name")
        target = AgentTarget(agent=name, conversation_id=run.conversation_id)
    else:
        target = await _default_target(log, run)
    if target.user is None:
        await _check_known(log, run, target.agent)
    return target


async def _check_known(log: Log, run: RunFacts, agent: str) -> None:
    """Check that the target is another agent and exists. `plan_mail` checks that it was not removed."""
    if agent == run.agent:
        raise InvalidInput("you cannot send a message to yourself; name another agent")
    (inbox,) = await log.describe(agent_topic(agent))
    if not inbox.last and (await look_up_entity(log, AGENTS, agent)) is None:
        raise UnknownAgent(f"there is no agent {agent!r}; name an agent that a worker serves")


async def _default_target(log: Log, run: RunFacts) -> AgentTarget:
    own = await find_agent(log, run.agent)
    if own.parent is not None:
        return AgentTarget(agent=own.parent, conversation_id=run.conversation_id)
    (stream,) = await log.describe(stream_topic(run.conversation_id))
    if stream.head.get(SWARM):
        return await _answer_target(log, str(stream.head[SWARM]), str(stream.head[CONTACT]))
    page = await log.read(chat_topic(run.conversation_id), None, LAST_MAIL)
    for record in reversed(page.records):
        sender = str(record.payload.get("sender", ""))
        is_mine = record.payload.get("recipient") == f"{AGENT_PREFIX}{run.agent}"
        if is_mine and sender.startswith(AGENT_PREFIX) and sender != f"{AGENT_PREFIX}{run.agent}":
            name = sender.removeprefix(AGENT_PREFIX)
            return AgentTarget(agent=name, conversation_id=run.conversation_id)
    raise InvalidInput("you have no parent, and no agent has written to you here; name the agent")


async def _contact_target(log: Log, run: RunFacts, nametag: str) -> AgentTarget:
    (stream,) = await log.describe(stream_topic(run.conversation_id))
    swarm = stream.head.get(SWARM)
    if not swarm:
        raise NotAContact(f"only a swarm that {nametag} has written to can answer them; try `friend_send`")
    user = await find_user_by_nametag(log, nametag)
    return await _answer_target(log, str(swarm), user.state.id)


async def _answer_target(log: Log, nametag: str, user: str) -> AgentTarget:
    swarm = await find_swarm(log, nametag)
    entry = await find_contact(log, nametag, user)
    contact = check_may_answer(swarm.state, user, None if entry is None else entry.state)
    return AgentTarget(agent=contact.agent, conversation_id=contact.conversation, swarm=nametag, user=user)


async def check_contact(log: Log, target: AgentTarget) -> list[Condition]:
    """Check that a swarm may still answer its contact, and return the conditions under which that holds."""
    if target.swarm is None or target.user is None:
        return []
    swarm = await find_swarm(log, target.swarm)
    contact = await find_contact(log, target.swarm, target.user)
    check_may_answer(swarm.state, target.user, None if contact is None else contact.state)
    user = await find_user(log, target.user)
    conditions: list[Condition] = [unchanged(SWARMS, target.swarm, swarm), unchanged(USERS, target.user, user)]
    if contact is not None:
        conditions.append(unchanged(CONTACTS, contact_id(target.swarm, target.user), contact))
    return conditions


async def attach_long_text(log: Log, text: str, limit: int = ATTACH_OVER_CHARS) -> tuple[str, list[JsonObject]]:
    """Return the text of the message and its attachments: a long text is attached, and the message has its beginning.

    The attachment is stored when the message is prepared. A blob that no record names is removed later.
    """
    if len(text) <= limit:
        return text, []
    data = text.encode()
    sha256 = await log.run(PutBlob(data))
    attachment = Attachment(ATTACHED_NAME, sha256, "text/plain", len(data))
    note = (
        f"[The full text, {len(text)} characters, is attached as {ATTACHED_NAME};"
        f" read it with `read_attachment`: {sha256}]"
    )
    return f"{text[:EXCERPT_CHARS]}…\n\n{note}", [attachment.facts()]


def with_attachments(append: Append, attachments: Sequence[Mapping[str, object]]) -> Append:
    """The same append, with records that keep the attached blobs for as long as they exist."""
    blobs = tuple(dict.fromkeys(str(item["sha256"]) for item in attachments))
    if not blobs:
        return append
    records = tuple(replace(record, blobs=blobs) for record in append.records)
    return Append(records=records, conditions=append.conditions, heads=append.heads)
