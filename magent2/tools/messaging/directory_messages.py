"""`send_user_message`, `friend_send`, `channel_send`: messages that depend on the directory of users.

`prepare` reads the directory when the tool is called, `perform` reads it again when the message is sent. Every
membership and friendship that the plan relies on is a condition of the append.
"""

from __future__ import annotations

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, LastSeqIs, SetHead, Write
from magent2.bus.records import NewRecord
from magent2.directory.channels import CHANNELS, ChannelMember, channel_recipients, find_channel
from magent2.directory.swarms import (
    CONTACT,
    CONTACTS,
    SWARM,
    SWARMS,
    check_may_write,
    contact_change,
    contact_id,
    find_contact,
    find_swarm,
)
from magent2.directory.users import (
    FRIENDSHIPS,
    USERS,
    User,
    find_friendship,
    find_user,
    find_user_by_nametag,
    friendship_id,
)
from magent2.errors import InvalidInput
from magent2.models.address import channel_topic, stream_topic
from magent2.tools.definition import ToolAnswer, ToolExecutionContext, ToolExecutionResult
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.messaging.mail import (
    AgentMail,
    acting_user,
    check_text,
    home_agent,
    now_text,
    plan_mail,
    require_user,
    sender_of,
    unchanged,
)
from magent2.tools.sending import Arguments, Payload, SendingTool, SendResult
from magent2.tools.wait_for_answer import AgentLane, check_wait, wait_for_answer, with_wait

WAIT_S = 60.0
WAIT_MIN_S, WAIT_MAX_S = 1.0, 600.0
MENTIONS_MAX = 20


class UserMessageArguments(Arguments):
    text: str = Field(description="The text of the message.")
    nametag: str | None = Field(
        default=None, description='The nametag of a swarm to write to: "@desk". Defaults to your user\'s own agent.'
    )
    wait: bool = Field(default=False, description="Send immediately, wait for the answer and return it.")
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
        " With wait=True it is sent immediately and its answer is returned."
    )
    arguments = UserMessageArguments
    payload = UserMessagePayload

    async def prepare(
        self, log: Log, arguments: UserMessageArguments, context: ToolExecutionContext
    ) -> UserMessagePayload:
        text = check_text(arguments.text)
        user = await acting_user(log, context.run)
        if arguments.nametag is not None:
            swarm = (await find_swarm(log, arguments.nametag)).state
            contact = await find_contact(log, swarm.nametag, user)
            check_may_write(swarm, user, None if contact is None else contact.state)
            nametag, conversation, agent = swarm.nametag, swarm.room(user), swarm.agent
        else:
            nametag = None
            conversation, agent = _home_lane((await find_user(log, user)).state, context.run)
        if arguments.wait:
            await check_wait(log, context.run, AgentLane(agent, conversation))
        return UserMessagePayload(
            user=user,
            conversation_id=conversation,
            agent=agent,
            swarm=nametag,
            text=text,
            wait=arguments.wait,
            created_at=now_text(),
        )

    async def perform(
        self, log: Log, payload: UserMessagePayload, context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        if payload.swarm is None:
            append = await _plan_to_home(log, payload, context.run, mark)
        else:
            append = await _plan_to_swarm(log, payload, payload.swarm, context.run, mark)
        if payload.wait:
            append = await with_wait(log, context.run, AgentLane(payload.agent, payload.conversation_id), append)
        return append

    async def respond(
        self, arguments: UserMessageArguments, context: ToolExecutionContext
    ) -> ToolExecutionResult[ToolAnswer]:
        result = await super().respond(arguments, context)
        if not arguments.wait:
            return result
        answer = result.typed_result
        lane = AgentLane(str(answer["agent"]), str(answer["conversation_id"]))
        wait = await wait_for_answer(context, lane, str(answer["envelope_id"]), arguments.timeout_s)
        answer = {**answer, "answer": wait.text if wait.status == "finished" else None, "status": wait.status}
        if wait.reason is not None:
            answer["reason"] = wait.reason
        return ToolExecutionResult(answer, answer)

    def answer(self, payload: UserMessagePayload, result: SendResult) -> ToolAnswer:
        return super().answer(payload, result) | {"agent": payload.agent, "conversation_id": payload.conversation_id}

    def target(self, payload: UserMessagePayload) -> str:
        return f"@{payload.swarm}" if payload.swarm is not None else f"agent:{payload.agent}"


def _home_lane(user: User, run: RunFacts) -> tuple[str, str]:
    """The conversation of a user and the agent that talks with them there."""
    agent = home_agent(user)
    if (user.home, agent) == (run.conversation_id, run.agent):
        raise InvalidInput("you are the agent that talks with the user; use `say`, or answer them")
    return user.home, agent


async def _plan_to_home(log: Log, payload: UserMessagePayload, run: RunFacts, mark: SendMark) -> Append:
    user = await find_user(log, payload.user)
    home, agent = _home_lane(user.state, run)
    sender = sender_of(run, agent, home)
    mail = await plan_mail(log, _user_mail(payload, run, home, agent, user.state.principal, sender), run, mark)
    return mail.merge(Write(conditions=(unchanged(USERS, payload.user, user),)))


async def _plan_to_swarm(log: Log, payload: UserMessagePayload, nametag: str, run: RunFacts, mark: SendMark) -> Append:
    """A user who writes to a swarm becomes its contact. The head of their conversation names the swarm and the user."""
    swarm = await find_swarm(log, nametag)
    users_exist = (await require_user(log, payload.user)), (await require_user(log, swarm.state.owner))
    contact = await find_contact(log, nametag, payload.user)
    contact_state = None if contact is None else contact.state
    check_may_write(swarm.state, payload.user, contact_state)
    room, owner = swarm.state.room(payload.user), f"user:{swarm.state.owner}"
    mail = _user_mail(payload, run, room, swarm.state.agent, owner, f"user:{payload.user}")
    topic = CONTACTS.topic(contact_id(nametag, payload.user))
    contact_unchanged = LastSeqIs(topic, 0 if contact is None else contact.seq)
    change = contact_change(contact_state, run.agent, run.conversation_id)
    directory = Write(
        records=() if change is None else (NewRecord(topic, dict(change)),),
        conditions=(unchanged(SWARMS, nametag, swarm), contact_unchanged, *users_exist),
        heads=(SetHead(stream_topic(room), {SWARM: nametag, CONTACT: payload.user}),),
    )
    return (await plan_mail(log, mail, run, mark)).merge(directory)


def _user_mail(
    payload: UserMessagePayload, run: RunFacts, conversation: str, agent: str, owner: str, sender: str
) -> AgentMail:
    return AgentMail(
        conversation=conversation,
        agent=agent,
        owner=owner,
        sender=sender,
        text=payload.text,
        created_at=payload.created_at,
        metadata={"origin": {"agent": run.agent, "conversation_id": run.conversation_id}},
    )


class FriendArguments(Arguments):
    nametag: str = Field(description='The nametag of the friend: "@bob".')
    text: str = Field(description="What to tell them.")


class FriendPayload(Payload):
    user: str
    sender: str
    sender_nametag: str
    nametag: str
    text: str
    created_at: str


class FriendSend(SendingTool[FriendArguments, FriendPayload]):
    name = "friend_send"
    description = "Send a message to a friend of the user you work for. Both must have agreed to be friends."
    arguments = FriendArguments
    payload = FriendPayload

    async def prepare(self, log: Log, arguments: FriendArguments, context: ToolExecutionContext) -> FriendPayload:
        text = check_text(arguments.text)
        sender = await acting_user(log, context.run)
        own = await find_user(log, sender)
        friend = await find_user_by_nametag(log, arguments.nametag)
        await find_friendship(log, sender, friend.state.id)
        home_agent(friend.state)
        return FriendPayload(
            user=friend.state.id,
            sender=sender,
            sender_nametag=own.state.nametag,
            nametag=friend.state.nametag,
            text=text,
            created_at=now_text(),
        )

    async def perform(self, log: Log, payload: FriendPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        sender_exists = await require_user(log, payload.sender)
        friend = await find_user(log, payload.user)
        friendship = await find_friendship(log, payload.sender, payload.user)
        mail = AgentMail(
            conversation=friend.state.home,
            agent=home_agent(friend.state),
            owner=friend.state.principal,
            sender=f"user:{payload.sender}",
            text=payload.text,
            created_at=payload.created_at,
            metadata={"friend": f"@{payload.sender_nametag}"},
        )
        conditions = (
            unchanged(FRIENDSHIPS, friendship_id(payload.sender, payload.user), friendship),
            unchanged(USERS, payload.user, friend),
            sender_exists,
        )
        return (await plan_mail(log, mail, context.run, mark)).merge(Write(conditions=conditions))

    def target(self, payload: FriendPayload) -> str:
        return f"@{payload.nametag}"


class ChannelArguments(Arguments):
    channel: str = Field(description='The name of the channel: "#launch".')
    text: str = Field(description="What to say there.")
    mentions: list[str] = Field(
        default_factory=list, max_length=MENTIONS_MAX, description='Members to notify: ["@bob"].'
    )


class ChannelPayload(Payload):
    channel: str
    user: str
    sender_username: str
    text: str
    mentions: list[str]
    created_at: str


class ChannelSend(SendingTool[ChannelArguments, ChannelPayload]):
    """The channel keeps every message. Its leader and the mentioned members also get it as mail."""

    name = "channel_send"
    description = (
        "Send a message to a channel that you are a member of. Its leader and the members you mention are notified."
    )
    arguments = ChannelArguments
    payload = ChannelPayload

    async def prepare(self, log: Log, arguments: ChannelArguments, context: ToolExecutionContext) -> ChannelPayload:
        text = check_text(arguments.text)
        user = await acting_user(log, context.run)
        channel = (await find_channel(log, arguments.channel)).state
        speaker = channel.speaker(user, context.run.agent)
        channel_recipients(channel, speaker, arguments.mentions)
        return ChannelPayload(
            channel=channel.name,
            user=user,
            sender_username=speaker.username,
            text=text,
            mentions=arguments.mentions,
            created_at=now_text(),
        )

    async def perform(self, log: Log, payload: ChannelPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        channel = await find_channel(log, payload.channel)
        speaker = channel.state.speaker(payload.user, context.run.agent)
        recipients = channel_recipients(channel.state, speaker, payload.mentions)
        conditions = [unchanged(CHANNELS, channel.state.name, channel), await require_user(log, payload.user)]
        mails: list[Append] = []
        for member in recipients:
            user = await find_user(log, member.user)
            conditions.append(unchanged(USERS, member.user, user))
            mail = _channel_mail(payload, member, user.state.principal)
            mails.append(await plan_mail(log, mail, context.run, mark))
        message = {
            "message_id": mark.id,
            "from": speaker.username,
            "text": payload.text,
            "told": [member.username for member in recipients],
            "created_at": payload.created_at,
        }
        record = NewRecord(channel_topic(payload.channel), message, id=mark.id)
        return Append(records=(record,), conditions=tuple(conditions)).merge(*mails)

    def target(self, payload: ChannelPayload) -> str:
        return f"#{payload.channel}"


def _channel_mail(payload: ChannelPayload, member: ChannelMember, owner: str) -> AgentMail:
    return AgentMail(
        conversation=member.room,
        agent=member.agent,
        owner=owner,
        sender=f"channel:{payload.channel}",
        text=f"@{payload.sender_username} in #{payload.channel}: {payload.text}",
        created_at=payload.created_at,
        metadata={"channel": payload.channel, "from": f"@{payload.sender_username}", "as": f"@{member.username}"},
    )
