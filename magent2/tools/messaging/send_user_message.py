"""`send_user_message`: to the agent that talks with the user, or, by its nametag, to a swarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, LastSeqIs, SetHead, Write
from magent2.bus.records import NewRecord
from magent2.directory.swarms import (
    CONTACT,
    CONTACTS,
    SWARM,
    SWARMS,
    Swarm,
    check_may_write,
    contact_change,
    contact_id,
    find_contact,
    find_swarm,
)
from magent2.directory.users import USERS, User, find_user
from magent2.errors import InvalidInput
from magent2.models.address import stream_topic
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.messaging.common import (
    AgentMail,
    acting_user,
    checked_text,
    home_agent,
    now_text,
    plan_mail,
    require_user,
    sender_of,
    still,
)
from magent2.tools.sending import SendResult
from magent2.tools.sending_tool import Arguments, Payload, SendingTool, definition_of
from magent2.tools.wait_for_answer import AgentLane, check_wait, wait_for_answer, with_wait

WAIT_S = 60.0
WAIT_MIN_S, WAIT_MAX_S = 1.0, 600.0


class UserMessageArguments(Arguments):
    text: str = Field(description="What to say.")
    nametag: str | None = Field(default=None, description='A swarm to write to: "@desk"; else your user\'s own agent.')
    wait: bool = Field(default=False, description="Send at once, and return the answer.")
    timeout_s: float = Field(
        default=WAIT_S, ge=WAIT_MIN_S, le=WAIT_MAX_S, description="How long to wait for the answer, in seconds."
    )

    @property
    def urgent(self) -> bool:
        return self.now or self.wait


class UserMessagePayload(Payload):
    user: str
    conversation_id: str
    agent: str
    swarm: str | None
    text: str
    wait: bool = False
    created_at: str


class SendUserMessage(SendingTool[UserMessageArguments, UserMessagePayload]):
    name = "send_user_message"
    description = (
        "Send a message to the agent that talks with your user, or with a nametag to a swarm of agents."
        " With wait=True it goes out at once and its answer is returned."
    )
    arguments = UserMessageArguments
    payload = UserMessagePayload

    async def prepare(
        self, log: Log, arguments: UserMessageArguments, context: ToolExecutionContext
    ) -> UserMessagePayload:
        text = checked_text(arguments.text)
        user = await acting_user(log, context.run)
        if arguments.nametag is not None:
            found = await find_swarm(log, arguments.nametag)
            contact = await find_contact(log, found.state.nametag, user)
            check_may_write(found.state, user, None if contact is None else contact.state)
            swarm: Swarm | None = found.state
            where = found.state.room(user), found.state.agent
        else:
            own = await find_user(log, user)
            swarm, where = None, _foreground(own.state, context.run)
        if arguments.wait:
            await check_wait(log, context.run, AgentLane(where[1], where[0]))
        return UserMessagePayload(
            user=user,
            conversation_id=where[0],
            agent=where[1],
            swarm=None if swarm is None else swarm.nametag,
            text=text,
            wait=arguments.wait,
            created_at=now_text(),
        )

    async def perform(
        self, log: Log, payload: UserMessagePayload, context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        if payload.swarm is None:
            append = await _to_foreground(log, payload, context.run, mark)
        else:
            append = await _to_swarm(log, payload, payload.swarm, context.run, mark)
        if payload.wait:
            lane = AgentLane(payload.agent, payload.conversation_id)
            append = await with_wait(log, context.run, lane, append)
        return append

    def answer(self, payload: UserMessagePayload, sent: SendResult) -> dict[str, Any]:
        return super().answer(payload, sent) | {"agent": payload.agent, "conversation_id": payload.conversation_id}

    def target(self, payload: UserMessagePayload) -> str:
        return f"@{payload.swarm}" if payload.swarm is not None else f"agent:{payload.agent}"


def _foreground(user: User, run: RunFacts) -> tuple[str, str]:
    agent = home_agent(user)
    if (user.home, agent) == (run.conversation_id, run.agent):
        raise InvalidInput("you are the agent that talks with the user; use `say`, or answer them")
    return user.home, agent


async def _to_foreground(log: Log, payload: UserMessagePayload, run: RunFacts, mark: SendMark) -> Append:
    found = await find_user(log, payload.user)
    home, agent = _foreground(found.state, run)
    mail = await plan_mail(log, _letter(payload, run, home, agent, found.state.principal), run, mark)
    return mail.merge(Write(conditions=(still(USERS, payload.user, found),)))


async def _to_swarm(log: Log, payload: UserMessagePayload, nametag: str, run: RunFacts, mark: SendMark) -> Append:
    """Whoever writes to a swarm is its contact from then on; the room that they share says whose it is."""
    swarm = await find_swarm(log, nametag)
    both = (await require_user(log, payload.user)), (await require_user(log, swarm.state.owner))
    contact = await find_contact(log, nametag, payload.user)
    known = None if contact is None else contact.state
    check_may_write(swarm.state, payload.user, known)
    room = swarm.state.room(payload.user)
    letter = _letter(payload, run, room, swarm.state.agent, f"user:{swarm.state.owner}")
    mail = await plan_mail(log, letter, run, mark)
    topic = CONTACTS.topic(contact_id(nametag, payload.user))
    change = contact_change(known, run.agent, run.conversation_id)
    known_at = LastSeqIs(topic, 0 if contact is None else contact.seq)
    whole = mail.merge(Write(conditions=(still(SWARMS, nametag, swarm), known_at, *both)))
    return Append(
        records=(*whole.records, *([] if change is None else [NewRecord(topic, dict(change))])),
        conditions=whole.conditions,
        heads=_marked(whole.heads, stream_topic(room), {SWARM: nametag, CONTACT: payload.user}),
    )


def _marked(heads: tuple[SetHead, ...], topic: str, fields: Mapping[str, Any]) -> tuple[SetHead, ...]:
    return tuple(SetHead(head.topic, {**head.fields, **fields}) if head.topic == topic else head for head in heads)


def _letter(payload: UserMessagePayload, run: RunFacts, conversation: str, agent: str, owner: str) -> AgentMail:
    return AgentMail(
        conversation=conversation,
        agent=agent,
        owner=owner,
        sender=sender_of(run, agent, conversation) if payload.swarm is None else f"user:{payload.user}",
        text=payload.text,
        created_at=payload.created_at,
        metadata={"origin": {"agent": run.agent, "conversation_id": run.conversation_id}},
    )


def send_user_message_definition() -> ToolDefinition:
    """The tool; when its caller waits, what it returns has the answer too."""
    inner = definition_of(SendUserMessage())

    async def execute(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[Any]:
        sent = await inner.execute(given, context)
        if not given.get("wait"):
            return sent
        asked, told = UserMessageArguments.model_validate(dict(given)), sent.typed_result
        lane = AgentLane(told["agent"], told["conversation_id"])
        answer = await wait_for_answer(context, lane, told["envelope_id"], asked.timeout_s)
        found = {**told, "answer": answer.text if answer.status == "finished" else None, "status": answer.status}
        if answer.reason is not None:
            found["reason"] = answer.reason
        return ToolExecutionResult(found, found)

    return replace(inner, execute=execute)
