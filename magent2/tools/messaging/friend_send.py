"""`friend_send`: a message to a friend of the user, which both have agreed to be."""

from __future__ import annotations

from pydantic import Field

from magent2.bus.flow import Flow
from magent2.bus.operations import Append
from magent2.directory.friends import FRIENDSHIPS, finding_friendship, friendship_id
from magent2.directory.users import USERS, finding_by_nametag, finding_user
from magent2.tools.definition import ToolExecutionContext
from magent2.tools.interface import SendMark
from magent2.tools.messaging.common import (
    Letter,
    acting_user,
    checked_text,
    home_agent,
    mailing,
    now_text,
    staying,
    still,
    together,
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

    def prepare(self, arguments: FriendArguments, context: ToolExecutionContext) -> Flow[FriendPayload]:
        text = checked_text(arguments.text)
        sender = yield from acting_user(context.run)
        own = yield from finding_user(sender)
        friend = yield from finding_by_nametag(arguments.nametag)
        yield from finding_friendship(sender, friend.state.id)
        home_agent(friend.state)
        return FriendPayload(
            user=friend.state.id,
            sender=sender,
            sender_nametag=own.state.nametag,
            nametag=friend.state.nametag,
            text=text,
            created_at=now_text(),
        )

    def perform(self, payload: FriendPayload, context: ToolExecutionContext, mark: SendMark) -> Flow[Append]:
        sender = yield from staying(payload.sender)
        friend = yield from finding_user(payload.user)
        friendship = yield from finding_friendship(payload.sender, payload.user)
        letter = Letter(
            conversation=friend.state.home,
            agent=home_agent(friend.state),
            owner=friend.state.principal,
            sender=f"user:{payload.sender}",
            text=payload.text,
            created_at=payload.created_at,
            metadata={"friend": f"@{payload.sender_nametag}"},
        )
        mail = yield from mailing(letter, context.run, mark)
        conditions = (
            still(FRIENDSHIPS, friendship_id(payload.sender, payload.user), friendship),
            still(USERS, payload.user, friend),
            sender,
        )
        return together([mail], conditions=conditions)

    def target(self, payload: FriendPayload) -> str:
        return f"@{payload.nametag}"
