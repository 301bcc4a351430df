"""The shapes of `/api` that are about people and places: users, friends, channels, swarms, connectors, outboxes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from magent2.gateway.schemas import example

NAME = Field(min_length=1, max_length=480)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class UserRequest(_Asked):
    model_config = example(id="ann", nametag="ann", agent="general") | ConfigDict(extra="forbid")

    id: str = NAME
    nametag: str | None = Field(default=None, max_length=80, description="needed for a new user; it never changes")
    agent: str | None = Field(default=None, max_length=480, description="who answers for them in the foreground")
    connector: str | None = Field(default=None, max_length=80, description="where they are reached; `web` at first")
    target: str | None = Field(default=None, max_length=400, description="whom the connector knows them as")


class UserShown(BaseModel):
    model_config = example(
        id="ann", nametag="ann", agent="general", connector="web", target="", home="home-0a1b2c3d4e5f6071",
        removed=False,
    )  # fmt: skip

    id: str
    nametag: str
    agent: str | None
    connector: str
    target: str
    home: str = Field(description="the conversation that messages to them go to")
    removed: bool


class UsersShown(BaseModel):
    model_config = example(users=[{"id": "ann", "nametag": "ann", "agent": "general", "connector": "web", "target": "",
                                "home": "home-0a1b2c3d4e5f6071", "removed": False}])  # fmt: skip

    users: list[UserShown]


class FriendRequest(_Asked):
    model_config = example(nametag="@bob", action="request") | ConfigDict(extra="forbid")

    nametag: str = Field(min_length=1, max_length=80)
    action: Literal["request", "accept", "refuse", "remove"]


class FriendShown(BaseModel):
    model_config = example(nametag="bob", status="pending", asked_by_you=True, may_ask_at_ms=0)

    nametag: str
    status: Literal["pending", "friends", "apart"]
    asked_by_you: bool
    may_ask_at_ms: int = Field(description="when you may ask again; 0 for at once")


class FriendsShown(BaseModel):
    model_config = example(friends=[{"nametag": "bob", "status": "friends", "asked_by_you": True, "may_ask_at_ms": 0}])

    friends: list[FriendShown]


class ChannelRequest(_Asked):
    model_config = example(name="launch", action="join", username="bob", user="bob", agent="general") | ConfigDict(
        extra="forbid"
    )

    name: str = Field(min_length=1, max_length=80)
    action: Literal["create", "join", "leave", "lead", "remove"]
    username: str | None = Field(default=None, max_length=80, description="of whom; for `create`, of the leader")
    user: str | None = Field(default=None, max_length=80, description="whose agent it is; for `create` and `join`")
    agent: str | None = Field(default=None, max_length=480, description="for `create` and `join`")


class MemberShown(BaseModel):
    username: str
    user: str
    agent: str


class ChannelShown(BaseModel):
    model_config = example(
        name="launch", leader="ann", members=[{"username": "ann", "user": "ann", "agent": "general"}], removed=False
    )

    name: str
    leader: str
    members: list[MemberShown]
    removed: bool


class ChannelsShown(BaseModel):
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

    channels: list[ChannelShown]


class ChannelMessages(BaseModel):
    model_config = example(messages=[{"seq": 1, "from": "ann", "text": "we are live", "told": ["bob"]}], before=None)

    messages: list[dict[str, Any]]
    before: int | None = Field(description="asks for what was said before; null when that was all")


class SwarmRequest(_Asked):
    model_config = example(nametag="@desk", action="create", agent="support") | ConfigDict(extra="forbid")

    nametag: str = Field(min_length=1, max_length=80)
    action: Literal["create", "open", "close", "let_in", "put_out", "block", "unblock", "remove"]
    agent: str | None = Field(default=None, max_length=480, description="who answers; for `create`")
    user: str | None = Field(default=None, max_length=80, description="whom to let in, put out, block or unblock")


class SwarmShown(BaseModel):
    model_config = example(nametag="desk", owner="bob", agent="support", open=True, guests=[], removed=False)

    nametag: str
    owner: str
    agent: str
    open: bool
    guests: list[str]
    removed: bool


class SwarmsShown(BaseModel):
    model_config = example(swarms=[{"nametag": "desk", "owner": "bob", "agent": "support", "open": True,
                                  "guests": [], "removed": False}])  # fmt: skip

    swarms: list[SwarmShown]


class ContactShown(BaseModel):
    user: str
    agent: str
    blocked: bool


class ContactsShown(BaseModel):
    model_config = example(contacts=[{"user": "ann", "agent": "general", "blocked": False}])

    contacts: list[ContactShown]


class ConnectorRequest(_Asked):
    model_config = example(
        id="hook",
        kind="webhook",
        config={"url": "https://example.com/in", "secret": "at-least-16-characters"},  # pragma: allowlist secret
    ) | ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=80)
    kind: Literal["console", "webhook"]
    config: dict[str, str | bool] = Field(default_factory=dict, description="a webhook: url, secret, takes_key, …")


class ConnectorShown(BaseModel):
    model_config = example(
        id="hook", kind="webhook", capabilities={"text": True, "files": True, "reply_to": True, "takes_key": False}
    )

    id: str
    kind: str
    capabilities: dict[str, bool]


class ConnectorsShown(BaseModel):
    model_config = example(connectors=[{"id": "web", "kind": "web", "capabilities": {
        "text": True, "files": True, "reply_to": True, "takes_key": True}}])  # fmt: skip

    connectors: list[ConnectorShown]


class ItemShown(BaseModel):
    """`dead` and `unknown` wait for somebody to send them again or drop them."""

    model_config = example(
        id="send-0a1b", connector="hook", target="ann", conversation_id="s-1", state="unknown", tries=1,
        reason="hook.example was lost before it had answered", receipt=None, at_ms=1790000000000,
    )  # fmt: skip

    id: str
    connector: str
    target: str
    conversation_id: str
    state: Literal["waiting", "begun", "sent", "dead", "unknown", "dropped"]
    tries: int
    reason: str | None
    receipt: str | None
    at_ms: int


class ItemsShown(BaseModel):
    model_config = example(items=[])

    items: list[ItemShown]
