"""`channel_send`: a message to a channel. All of it is kept there; its leader and who is mentioned are told."""

from __future__ import annotations

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.directory.channels import CHANNELS, ChannelMember, channel_recipients, find_channel
from magent2.directory.users import USERS, find_user
from magent2.models.address import channel_topic
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import SendMark
from magent2.tools.messaging.common import (
    AgentMail,
    acting_user,
    checked_text,
    now_text,
    plan_mail,
    require_user,
    still,
)
from magent2.tools.sending_tool import Arguments, Payload, SendingTool

MENTIONS_MAX = 20


class ChannelArguments(Arguments):
    channel: str = Field(description='The name of the channel: "#launch".')
    text: str = Field(description="What to say there.")
    mentions: list[str] = Field(
        default_factory=list, max_length=MENTIONS_MAX, description='Members who are to hear of it: ["@bob"].'
    )


class ChannelPayload(Payload):
    channel: str
    user: str
    sender_username: str
    text: str
    mentions: list[str]
    created_at: str


class ChannelSend(SendingTool[ChannelArguments, ChannelPayload]):
    name = "channel_send"
    description = "Say something in a channel that you are a member of. Its leader and those you mention are told."
    arguments = ChannelArguments
    payload = ChannelPayload

    async def prepare(self, log: Log, arguments: ChannelArguments, context: ToolExecutionContext) -> ChannelPayload:
        text = checked_text(arguments.text)
        user = await acting_user(log, context.run)
        found = await find_channel(log, arguments.channel)
        speaker = found.state.speaker(user, context.run.agent)
        channel_recipients(found.state, speaker, arguments.mentions)
        return ChannelPayload(
            channel=found.state.name,
            user=user,
            sender_username=speaker.username,
            text=text,
            mentions=arguments.mentions,
            created_at=now_text(),
        )

    async def perform(self, log: Log, payload: ChannelPayload, context: ToolExecutionContext, mark: SendMark) -> Append:
        found = await find_channel(log, payload.channel)
        speaker = found.state.speaker(payload.user, context.run.agent)
        told = channel_recipients(found.state, speaker, payload.mentions)
        conditions = [still(CHANNELS, found.state.name, found), (await require_user(log, payload.user))]
        mails: list[Append] = []
        for member in told:
            user = await find_user(log, member.user)
            conditions.append(still(USERS, member.user, user))
            mail = await plan_mail(log, _letter(payload, member, user.state.principal), context.run, mark)
            mails.append(mail)
        said = _said(payload, mark, speaker, [member.username for member in told])
        return Append(records=(said,), conditions=tuple(conditions)).merge(*mails)

    def target(self, payload: ChannelPayload) -> str:
        return f"#{payload.channel}"


def _letter(payload: ChannelPayload, member: ChannelMember, owner: str) -> AgentMail:
    return AgentMail(
        conversation=member.room,
        agent=member.agent,
        owner=owner,
        sender=f"channel:{payload.channel}",
        text=f"@{payload.sender_username} in #{payload.channel}: {payload.text}",
        created_at=payload.created_at,
        metadata={"channel": payload.channel, "from": f"@{payload.sender_username}", "as": f"@{member.username}"},
    )


def _said(payload: ChannelPayload, mark: SendMark, speaker: ChannelMember, told: list[str]) -> NewRecord:
    facts = {
        "message_id": mark.id,
        "from": speaker.username,
        "text": payload.text,
        "told": told,
        "created_at": payload.created_at,
    }
    return NewRecord(channel_topic(payload.channel), facts, id=mark.id)
