"""Names of the fields in a conversation's head and of the headers of mail. The values are part of the wire format."""

from __future__ import annotations

import hashlib
from typing import Final, TypedDict

from magent2.models.json_types import JsonObject

# --- Fields of a conversation's head (the head of its `stream:` topic)

ACTIVE_AGENT: Final = "active_agent"  # answers messages to `chat:{conversation}`
OWNER: Final = "owner"  # the principal that may read and write the conversation
RUN_STATUS: Final = "run_status"  # status of the last run: `running`, or how it ended
RUN_AGENT: Final = "run_agent"  # agent of the last run
RUN_ENVELOPE: Final = "run_envelope"  # id of the message that the last run answers
RUNNING: Final = "running"  # a value of RUN_STATUS
PAUSED: Final = "paused"  # number of calls of the last run that wait for approval or for the client; absent if none
CLIENT_CALLS: Final = "client_calls"  # how many of them are calls of tools of the client
BUDGET: Final = "budget"  # kind of the budget that the last run waits for; absent if it does not
FIRST_TEXT: Final = "first_text"  # first message, shortened for lists
LAST_TEXT: Final = "last_text"  # last message, shortened for lists
SCHEDULED: Final = "scheduled"  # there is, or was, a schedule that sends messages to the conversation


class ConversationHead(TypedDict, total=False):
    """The fields of a conversation's head that lists and routes read. The log does not check their types."""

    active_agent: str | None
    owner: str
    run_status: str
    run_agent: str
    run_envelope: str
    paused: int
    client_calls: int
    budget: str
    first_text: str
    last_text: str
    title: str  # as a person set it
    scenario_id: str  # the scenario whose agents answer
    usage: JsonObject  # of the last run; absent if it is too long for a head
    hidden: bool
    scheduled: bool


def wait_field(agent: str) -> str:
    """The head field that names the lane which the agent's run in the conversation waits for."""
    return "wait_" + hashlib.blake2b(agent.encode(), digest_size=6).hexdigest()


# --- Headers of all mail

PRINCIPAL: Final = "principal"  # user or program that the mail was sent for
STEER: Final = "steer"  # the mail is for a run in progress
HOPS: Final = "hops"  # number of agents that have passed the message on
TRACE: Final = "traceparent"  # span of the send, in W3C trace context format
COPIES: Final = "copies"  # number of inboxes the mail went to, if more than one
KIND: Final = "kind"  # kind of run the mail asks for, if it is not a message
MESSAGE_RUN: Final = "message"  # the kinds of runs
TOOL_RUN: Final = "tool"
ROUTE_RUN: Final = "route"
ROOT_RUN: Final = "root_run"  # of mail to a subagent: the run whose budget its runs use
ROOT_CONVERSATION: Final = "root_conversation"  # and the conversation of that run
STREAM_SEEN: Final = "stream_seen"  # of mail that is not shown: last seq of the stream when it was sent

# --- Headers of commands (control mail)

MAIL_SEEN: Final = "mail_seen"  # last seq of the agent's inbox when the command was sent; later mail is not affected
TARGET_ENVELOPE: Final = "meant"  # envelope whose run was in progress when the command was sent
AWAITED: Final = "awaited"  # of a stop: the envelope that it names may still wait, so the stop waits behind it too
WHOLE_LANE: Final = "whole"  # of a stop: it applies to all mail of the lane up to `mail_seen`, not only to one run

# --- Commands: the content of control mail that stops a run

STOP: Final = "stop"
STOP_AFTER_TURN: Final = "stop_after_turn"

RESUME: Final = "resume"  # a command: a run that waits for more budget checks again

# --- Headers of mail to a connector's relay

RELAY_JOB: Final = "errand"  # the outbox item to send
