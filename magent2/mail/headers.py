"""Names of the fields in a conversation's head and of the headers of mail. The values are part of the wire format."""

from __future__ import annotations

import hashlib

# --- Fields of a conversation's head (the head of its `stream:` topic)

ACTIVE_AGENT = "active_agent"  # answers messages to `chat:{conversation}`
OWNER = "owner"  # the principal that may read and write the conversation
RUN_STATUS = "run_status"  # status of the last run: `running`, or how it ended
RUN_AGENT = "run_agent"  # agent of the last run
RUN_ENVELOPE = "run_envelope"  # id of the message that the last run answers
RUNNING = "running"  # a value of RUN_STATUS
PAUSED = "paused"  # number of calls of the last run that wait for approval; absent if none
FIRST_TEXT = "first_text"  # first message, shortened for lists
LAST_TEXT = "last_text"  # last message, shortened for lists


def wait_field(agent: str) -> str:
    """The head field that names the lane which the agent's run in the conversation waits for."""
    return "wait_" + hashlib.blake2b(agent.encode(), digest_size=6).hexdigest()


# --- Headers of all mail

PRINCIPAL = "principal"  # user or program that the mail was sent for
STEER = "steer"  # the mail is for a run in progress
HOPS = "hops"  # number of agents that have passed the message on
TRACE = "traceparent"  # span of the send, in W3C trace context format
COPIES = "copies"  # number of inboxes the mail went to, if more than one
KIND = "kind"  # kind of run the mail asks for, if it is not a message
STREAM_SEEN = "stream_seen"  # of mail that is not shown: last seq of the stream when it was sent

# --- Headers of commands (control mail)

MAIL_SEEN = "mail_seen"  # last seq of the agent's inbox when the command was sent; it does not apply to later mail
TARGET_ENVELOPE = "meant"  # envelope whose run was in progress when the command was sent
WHOLE_LANE = "whole"  # of a stop: it applies to all mail of the lane up to `mail_seen`, not only to one run

# --- Headers of mail to a connector's relay

RELAY_JOB = "errand"  # the outbox item to send
