"""Schemas for the directory: users, friends, channels and swarms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.api.base import ApiModel, StrictRequest, example
from magent2.models.json_types import JsonObject


class UserRequest(StrictRequest):
    """Create or change a user. Omitted fields keep their value."""

    model_config = example(id="ann", nametag="ann", agent="general")

    id: str = Field(min_length=1, max_length=NAME_MAX_CHARS)
    nametag: str | None = Field(default=None, max_length=80, description="required for a new user; it cannot change")
    agent: str | None = Field(
        default=None, max_length=NAME_MAX_CHARS, description="their foreground agent, which answers for them"
    )
    connector: str | None = Field(
        default=None, max_length=80, description="the connector that reaches them; `web` by default"
    )
    target: str | None = Field(default=None, max_length=400, description="their id at the connector")


class UserInfo(ApiModel):
    """A user."""

    model_config = example(
        id="ann", nametag="ann", agent="general", connector="web", target="", home="home-0a1b2c3d4e5f6071",
        removed=False,
    )  # fmt: skip

    id: str
    nametag: str
    agent: str | None
    connector: str
    target: str
    home: str = Field(description="the conversation that receives messages to this user")
    removed: bool


class UserList(ApiModel):
    """All users."""

    model_config = example(users=[{"id": "ann", "nametag": "ann", "agent": "general", "connector": "web", "target": "",
                                "home": "home-0a1b2c3d4e5f6071", "removed": False}])  # fmt: skip

    users: list[UserInfo]


class FriendRequest(StrictRequest):
    """Change the friendship with another user."""

    model_config = example(nametag="@bob", action="request")

    nametag: str = Field(min_length=1, max_length=80)
    action: Literal["request", "accept", "refuse", "remove"]


class FriendInfo(ApiModel):
    """The friendship with another user."""

    model_config = example(nametag="bob", status="pending", asked_by_you=True, may_ask_at_ms=0)

    nametag: str
    status: Literal["pending", "friends", "apart"]
    asked_by_you: bool
    may_ask_at_ms: int = Field(description="when you may send the next request; 0 means now")


class FriendList(ApiModel):
    """All friendships of a user."""

    model_config = example(friends=[{"nametag": "bob", "status": "friends", "asked_by_you": True, "may_ask_at_ms": 0}])

    friends: list[FriendInfo]


class ChannelRequest(StrictRequest):
    """Create a channel or change its members."""

    model_config = example(name="launch", action="join", username="bob", user="bob", agent="general")

    name: str = Field(min_length=1, max_length=80)
    action: Literal["create", "join", "leave", "lead", "remove"]
    username: str | None = Field(
        default=None, max_length=80, description="the member that the action is about; for `create`, the leader"
    )
    user: str | None = Field(
        default=None, max_length=80, description="the user whom the agent acts for; for `create` and `join`"
    )
    agent: str | None = Field(default=None, max_length=NAME_MAX_CHARS, description="for `create` and `join`")


class ChannelMemberInfo(ApiModel):
    """A member of a channel."""

    username: str
    user: str
    agent: str


class ChannelInfo(ApiModel):
    """A channel and its members."""

    model_config = example(
        name="launch", leader="ann", members=[{"username": "ann", "user": "ann", "agent": "general"}], removed=False
    )

    name: str
    leader: str
    members: list[ChannelMemberInfo]
    removed: bool


class ChannelList(ApiModel):
    """All channels."""

    model_config = example(
        channels=[
            {
                "name": "launch",
                "leader": "ann",
                "removed": False,
                "members": [{"username": "ann", "user": "ann", "agent": "general"}],
            }
        ]
    )

    channels: list[ChannelInfo]


class ChannelMessages(ApiModel):
    """Messages of a channel."""

    model_config = example(messages=[{"seq": 1, "from": "ann", "text": "we are live", "told": ["bob"]}], before=None)

    messages: list[JsonObject]
    before: int | None = Field(description="pass it as `before` to get earlier messages; null if there are none")


class SwarmRequest(StrictRequest):
    """Create a swarm or change who may contact it."""

    model_config = example(nametag="@desk", action="create", agent="support")

    nametag: str = Field(min_length=1, max_length=80)
    action: Literal["create", "open", "close", "let_in", "put_out", "block", "unblock", "remove"]
    agent: str | None = Field(default=None, max_length=NAME_MAX_CHARS, description="the answering agent; for `create`")
    user: str | None = Field(default=None, max_length=80, description="the user to let in, put out, block or unblock")


class SwarmInfo(ApiModel):
    """A swarm. When it is not `open`, only its `guests` may contact it."""

    model_config = example(nametag="desk", owner="bob", agent="support", open=True, guests=[], removed=False)

    nametag: str
    owner: str
    agent: str
    open: bool
    guests: list[str]
    removed: bool


class SwarmList(ApiModel):
    """All swarms."""

    model_config = example(swarms=[{"nametag": "desk", "owner": "bob", "agent": "support", "open": True,
                                  "guests": [], "removed": False}])  # fmt: skip

    swarms: list[SwarmInfo]


class SwarmContactInfo(ApiModel):
    """A user who has contacted a swarm."""

    user: str
    agent: str
    blocked: bool


class SwarmContactList(ApiModel):
    """All users who have contacted a swarm."""

    model_config = example(contacts=[{"user": "ann", "agent": "general", "blocked": False}])

    contacts: list[SwarmContactInfo]
