"""Addresses, names and topics. Nobody else puts a topic name together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from magent2.errors import AddressError, TopicError

TOPIC_MAX_CHARS = 512
NAME_MAX_CHARS = 480  # the longest name that still fits every kind of topic

BAD_RECIPIENT = "recipient must be 'chat:{conversation_id}' or 'agent:{Name}'"


def is_name(value: object) -> bool:
    """Whether a value can name an agent or a conversation."""
    return isinstance(value, str) and _is_name(value)


@lru_cache(maxsize=4096)  # every record names its conversation
def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_MAX_CHARS and text.strip() == text and text.isprintable()


def check_name(value: str, what: str) -> str:
    if not is_name(value):
        raise AddressError(
            f"{what} {value[:80]!r} cannot be used: take 1 to {NAME_MAX_CHARS} printable characters, no outer spaces"
        )
    return value


def check_topic(topic: object) -> str:
    """The topic itself, if a log can be called that."""
    if not isinstance(topic, str) or not topic:
        raise TopicError("topic must be a non-empty string such as 'chat:{conversation_id}'")
    if len(topic) > TOPIC_MAX_CHARS:
        raise TopicError(f"topic has {len(topic)} characters, the limit is {TOPIC_MAX_CHARS}: {topic[:60]!r}…")
    if not topic.isprintable():
        raise TopicError(f"topic {topic[:80]!r} has characters that cannot be printed; leave them out")
    return topic


@lru_cache(maxsize=4096)
def checked_topic(topic: str) -> tuple[str, str]:
    """Kind and name of a topic that a log can have: `chat:a:b` → (`chat`, `a:b`)."""
    kind, _, name = check_topic(topic).partition(":")
    return kind, name


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message goes: to a conversation, or to an agent."""

    kind: Literal["chat", "agent"]
    name: str

    @classmethod
    def parse(cls, text: str) -> Address:
        kind, _, name = text.strip().partition(":")
        return _address(kind, name.strip())

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@lru_cache(maxsize=4096)  # a message is parsed by its tool, by its delivery and by its reader
def _address(kind: str, name: str) -> Address:
    if kind not in ("chat", "agent") or not name:
        raise AddressError(BAD_RECIPIENT)
    check_name(name, "conversation id" if kind == "chat" else "agent name")
    return Address("chat" if kind == "chat" else "agent", name)


def chat_topic(name: str) -> str:
    """Mail of a conversation, or of an agent: the two share one space of names."""
    return f"chat:{name}"


def control_topic(agent: str) -> str:
    return f"control:{agent}"


def stream_topic(conversation: str) -> str:
    return f"stream:{conversation}"


def history_topic(conversation: str) -> str:
    return f"history:{conversation}"


def dead_topic(agent: str) -> str:
    return f"dead:{agent}"


def agent_topic(agent: str) -> str:
    """The log that says an agent of this name exists."""
    return f"agent:{agent}"


def outbox_topic(connector: str) -> str:
    return f"outbox:{connector}"


def relay_agent(connector: str) -> str:
    """The name whose mail is what a connector still has to send."""
    return f"outbox:{connector}"


def channel_topic(channel: str) -> str:
    """What was said in a channel; who is in it is another log."""
    return f"channel:{channel}"


def entity_topic(kind: str, entity: str) -> str:
    """The log of one thing of the directory: a key, for one."""
    return f"entity:{kind}:{entity}"


def counts_topic() -> str:
    """The log on which gateways tell each other how many requests they have counted."""
    return "counts:requests"


def conversation_topics(conversation: str) -> tuple[str, str, str]:
    """The logs that are the conversation's own, and go with it."""
    return stream_topic(conversation), chat_topic(conversation), history_topic(conversation)
