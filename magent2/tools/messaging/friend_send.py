"""`friend_send`: a message to a friend of the user, which both have agreed to be."""

from __future__ import annotations

from pydantic import Field

from magent2.bus.log import Log
from magent2.bus.operations import Append, Write
from magent2.directory.friends import FRIENDSHIPS, find_friendship, friendship_id
from magent2.directory.users import USERS, find_user, find_user_by_nametag
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import SendMark
from magent2.tools.messaging.common import (
    AgentMail,
    acting_user,
    checked_text,
    home_agent,
    now_text,
    plan_mail,
    require_user,
    still,
)
from magent2.tools.sending_tool import Arguments, Payload, SendingTool


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
        text = checked_text(arguments.text)
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
        sender = await require_user(log, payload.sender)
        friend = await find_user(log, payload.user)
        friendship = await find_friendship(log, payload.sender, payload.user)
        letter = AgentMail(
            conversation=friend.state.home,
            agent=home_agent(friend.state),
            owner=friend.state.principal,
            sender=f"user:{payload.sender}",
            text=payload.text,
            created_at=payload.created_at,
            metadata={"friend": f"@{payload.sender_nametag}"},
        )
        mail = await plan_mail(log, letter, context.run, mark)
        conditions = (
            still(FRIENDSHIPS, friendship_id(payload.sender, payload.user), friendship),
            still(USERS, payload.user, friend),
            sender,
        )
        return mail.merge(Write(conditions=tuple(conditions)))

    def target(self, payload: FriendPayload) -> str:
        return f"@{payload.nametag}"
