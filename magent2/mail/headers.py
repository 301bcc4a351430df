"""The names of what is marked on mail and on a conversation: headers of the one, fields of the other's head."""

from __future__ import annotations

import hashlib

# Fields of a conversation's head
ACTIVE_AGENT = "active_agent"
OWNER = "owner"
RUN_STATUS, RUN_AGENT, RUN_ENVELOPE = "run_status", "run_agent", "run_envelope"  # of its last run
RUNNING = "running"
PAUSED = "paused"  # how many calls of its last run wait for a person, if any do
FIRST_TEXT, LAST_TEXT = "first_text", "last_text"  # of its messages, short enough for a list


def wait_field(agent: str) -> str:
    """The field that says which lane the agent's run in the conversation waits for, if it does."""
    return "wait_" + hashlib.blake2b(agent.encode(), digest_size=6).hexdigest()


# Headers of mail
PRINCIPAL = "principal"
STEER = "steer"
HOPS = "hops"
TRACE = "traceparent"  # the span that it was sent in, as W3C's trace context writes it
COPIES = "copies"  # into how many inboxes it went, if more than one
KIND = "kind"  # what sort of run the mail asks for, when it is no message
RELAY_JOB = "errand"  # of mail to a connector's relay: the item of the outbox that it is about
MAIL_SEEN = "mail_seen"  # of a command: the last seq of the agent's inbox when it was sent; later mail is not meant
STREAM_SEEN = "stream_seen"  # of mail that shows no message: the last seq of the stream when it was sent
TARGET_ENVELOPE = "meant"  # of a command: the envelope whose run was under way when it was sent, if one was
WHOLE_LANE = "whole"  # of a stop: all mail of the lane up to `mail_seen` is meant, not one run alone
