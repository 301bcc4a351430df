"""Names, addresses and topics. Topic names are built only here."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from magent2.errors import AddressError, TopicError

TOPIC_MAX_CHARS = 512
NAME_MAX_CHARS = 480  # the longest name that still fits every kind of topic

NAME_PATTERN = r"^\S(.*\S)?$"  # for documents: no outer spaces; `check_name` also refuses unprintable characters
DOT_NAMES = frozenset({".", ".."})  # in a path they mean a folder, also when they are percent-encoded

KIND_MARK = "\n"  # see `topics_of_kind`
SUBAGENT_SEPARATOR = "~"  # between a conversation and the conversations of its subagents

_SUBAGENT_ID = re.compile(rf"{SUBAGENT_SEPARATOR}.+-[0-9a-f]{{8}}$")

SWEEPER = "retention:sweeper"  # agent name whose only lane is the right to sweep the log
SWEEP_LANE = "retention:sweep"
SCHEDULER = "schedule:scheduler"  # agent name that has a lane for each schedule
INTERNAL_AGENTS = frozenset(
    {SWEEPER, SCHEDULER}
)  # names that are lanes of the runtime itself; lists of agents leave them out

EPOCH_TOPIC = "log:epochs"  # one record for each epoch of the log after the first

WEBHOOK_PREFIX = "webhook:"  # of the topics of webhooks, which are the names of their outboxes too
WEBHOOK_RELAY = "outbox:_webhooks"  # agent name whose lanes are the webhooks; no connector can be called `_webhooks`

RESERVED_PREFIXES = ("outbox:", "retention:", "schedule:")  # of the names of inboxes that the runtime itself uses

BAD_RECIPIENT = "recipient must be 'chat:{conversation_id}' or 'agent:{Name}'"


def is_name(value: object) -> bool:
    """Whether a value is a valid name of an agent or a conversation."""
    return isinstance(value, str) and 0 < len(value) <= NAME_MAX_CHARS and _is_name(value)


@lru_cache(maxsize=4096)  # called for every record, mostly with the same names; a longer text must not be kept
def _is_name(text: str) -> bool:
    return text.strip() == text and text.isprintable()


def check_name(value: str, what: str) -> str:
    """Return the name. Raises `AddressError` if it is not valid."""
    if not is_name(value):
        raise AddressError(
            f"{what} {value[:80]!r} cannot be used: take 1 to {NAME_MAX_CHARS} printable characters, no outer spaces"
        )
    return value


def check_conversation_id(value: str, what: str = "conversation id") -> str:
    """Return the id of a conversation that may be new. Raises `AddressError` if it is not valid.

    It must not be the name of an inbox of the runtime either. Existing conversations can be read and deleted under any
    name.
    """
    if value in DOT_NAMES:
        raise AddressError(f"{what} {value!r} cannot be used: browsers remove it from a path; take another")
    if value.startswith(RESERVED_PREFIXES):
        raise AddressError(
            f"{what} {value[:80]!r} cannot be used: {value.partition(':')[0]}: is reserved; take another id"
        )
    return check_name(value, what)


def check_topic(topic: object) -> str:
    """Return the topic. Raises `TopicError` if it is not valid."""
    if not isinstance(topic, str) or not topic:
        raise TopicError("topic must be a non-empty string such as 'chat:{conversation_id}'")
    if len(topic) > TOPIC_MAX_CHARS:
        raise TopicError(f"topic has {len(topic)} characters, the limit is {TOPIC_MAX_CHARS}: {topic[:60]!r}…")
    if not topic.isprintable():
        raise TopicError(f"topic {topic[:80]!r} contains unprintable characters; remove them")
    return topic


@lru_cache(maxsize=4096)
def checked_topic(topic: str) -> tuple[str, str]:
    """Check a topic and split it into kind and name: `chat:a:b` → (`chat`, `a:b`)."""
    kind, _, name = check_topic(topic).partition(":")
    return kind, name


def kind_prefix(topic: str) -> str:
    """The kind of a topic with its colon: `chat:a:b` → `chat:`. Empty for a topic without a colon."""
    return topic[: topic.find(":") + 1]


def topics_of_kind(kind: str) -> str:
    """What a `Watch` takes in place of a topic to report all topics of a kind. No topic has this unprintable name."""
    return f"{kind}:{KIND_MARK}"


@dataclass(frozen=True, slots=True)
class Address:
    """The recipient of a message: a conversation or an agent."""

    kind: Literal["chat", "agent"]
    name: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `chat:{conversation_id}` or `agent:{Name}`. Raises `AddressError`."""
        kind, _, name = text.strip().partition(":")
        return _address(kind, name.strip())

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@lru_cache(maxsize=4096)  # the sending tool, the delivery and the reader each parse the same address
def _address(kind: str, name: str) -> Address:
    if kind not in ("chat", "agent") or not name:
        raise AddressError(BAD_RECIPIENT)
    check_name(name, "conversation id" if kind == "chat" else "agent name")
    return Address("chat" if kind == "chat" else "agent", name)


def chat_topic(name: str) -> str:
    """The inbox of a conversation or of an agent. Both share one namespace."""
    return f"chat:{name}"


def control_topic(agent: str) -> str:
    """The commands for an agent: stops, decisions and changes of the connection. Steers are in its inbox."""
    return f"control:{agent}"


def stream_topic(conversation: str) -> str:
    """The events of a conversation, which its readers follow."""
    return f"stream:{conversation}"


def history_topic(conversation: str) -> str:
    """The records that a conversation's runs are rebuilt from."""
    return f"history:{conversation}"


def dead_topic(agent: str) -> str:
    """The dead letters of an agent."""
    return f"dead:{agent}"


def agent_topic(agent: str) -> str:
    """The registration of an agent."""
    return f"agent:{agent}"


def outbox_topic(connector: str) -> str:
    """The outbox of a connector."""
    return f"outbox:{connector}"


def relay_agent(connector: str) -> str:
    """The agent name whose inbox holds the messages that a connector has yet to deliver. All webhooks share one."""
    return WEBHOOK_RELAY if connector.startswith(WEBHOOK_PREFIX) else f"outbox:{connector}"


def webhook_topic(webhook: str) -> str:
    """The topic whose head describes a webhook."""
    return f"{WEBHOOK_PREFIX}{webhook}"


def channel_topic(channel: str) -> str:
    """The messages of a channel. Its members are in its `entity_topic`."""
    return f"channel:{channel}"


def entity_topic(kind: str, entity: str) -> str:
    """The log of one entity of the directory, such as a key."""
    return f"entity:{kind}:{entity}"


def file_topic(file_id: str) -> str:
    """The content of a file. Its head describes the file, its records name the blobs in their order."""
    return f"file:{file_id}"


def schedule_topic(schedule_id: str) -> str:
    """A schedule: its head describes it, its records hold its text and its changes. Its lane has the same name."""
    return f"schedule:{schedule_id}"


def schedule_runs_topic(schedule_id: str) -> str:
    """What became of the slots of a schedule."""
    return f"schedule-runs:{schedule_id}"


def counts_topic() -> str:
    """The log through which gateways share their request counts."""
    return "counts:requests"


def sweep_topic() -> str:
    """The topic whose head holds the progress of the sweep."""
    return "sweep:progress"


def usage_topic(kind: str, name: str = "") -> str:
    """The ledger of what model calls have used, of a `user`, a `conversation`, a `run` or `all` of them.

    The name of a user may be empty: conversations without an owner.
    """
    return f"usage:{kind}:{name}"


def usage_days_topic(user: str) -> str:
    """The usage of a user by day, which stays when the records of the ledger are removed."""
    return f"usage:days:{user}"


def budgets_topic() -> str:
    """The limits that were set at run time, and the runs that wait for more budget."""
    return "budgets:limits"


def conversation_topics(conversation: str) -> tuple[str, str, str]:
    """The topics that belong to a conversation and are deleted with it."""
    return stream_topic(conversation), chat_topic(conversation), history_topic(conversation)


def is_subagent_id(conversation: str) -> bool:
    """Whether an id has the form that `subagent_id_of` gives."""
    return _SUBAGENT_ID.search(conversation) is not None


def subagent_id_of(conversation: str, agent: str, send_id: str) -> str:
    """The id of a subagent's conversation, below that of the agent that starts it.

    It is derived from the id of the starting call, so every attempt of that call gives the same conversation.
    """
    digest = hashlib.blake2b(send_id.encode(), digest_size=4).hexdigest()
    return f"{conversation}{SUBAGENT_SEPARATOR}{agent}-{digest}"
