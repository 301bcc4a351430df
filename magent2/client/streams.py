"""Reading a conversation's stream: the cursor over all connections, and finding the reply to a message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from shlex import quote as quoted

from httpx2 import ServerSentEvent

from magent2.client.api_requests import path_part
from magent2.client.results import ConversationEvent, MessageReply, SentMessage
from magent2.errors import ApprovalNeeded, GatewayFailed, Gone, RunFailed, RunStopped
from magent2.models.api.messages import ApprovalInfo
from magent2.models.json_types import JsonObject

RETRY_S = 1.0  # before a new connection, unless the gateway says otherwise
RETRY_MIN_S, RETRY_MAX_S = 0.05, 10.0

# The events that decide whether a message was or can be answered
REPLY_KINDS = ("run", "output", "approval", "message_received")


class StreamCursor:
    """The position of one reader in a conversation's stream, kept over all its connections."""

    def __init__(self, conversation_id: str, since: int | None = None, kinds: Iterable[str] | None = None) -> None:
        self.path = f"/stream/{path_part(conversation_id)}"
        self.seq = since
        self.retry_s = RETRY_S
        self.ended = False
        self._conversation_id = conversation_id
        self._kinds = None if kinds is None else ",".join(kinds)

    @property
    def params(self) -> dict[str, str]:
        """Query parameters of the next connection."""
        given = {"since": self.seq, "kinds": self._kinds}
        return {name: str(value) for name, value in given.items() if value is not None}

    def advance(self, frame: ServerSentEvent) -> ConversationEvent | None:
        """Move past a frame. Returns its event, or `None` if it has none for the caller."""
        if frame.retry is not None:
            self.retry_s = min(max(frame.retry / 1000, RETRY_MIN_S), RETRY_MAX_S)
        data = _json_object(frame.data) if frame.data else None
        if frame.event == "end":
            # After a drain, another gateway or this one after its restart continues the stream.
            return None if (data or {}).get("reason") == "drain" else self._end(data or {})
        if frame.event == "gap" and data is not None:
            self.seq = int(data.get("floor", 0))
            return ConversationEvent(self.seq, "gap", data)
        if frame.id:  # the last id seen, also for a frame without one
            if not (frame.id.isascii() and frame.id.isdecimal()):
                fault = f"the stream contains the event id {frame.id[:40]!r}, which is not a number"
                raise GatewayFailed(200, "bad_event", fault)
            self.seq = int(frame.id)
        return None if data is None else ConversationEvent(self.seq or 0, frame.event, data)

    def end_deleted(self) -> ConversationEvent:
        """End the stream after a 204: the conversation was deleted, or the caller may no longer read it."""
        return self._end({"event": "end", "conversation_id": self._conversation_id, "reason": "deleted"})

    def _end(self, data: JsonObject) -> ConversationEvent:
        self.ended = True
        return ConversationEvent(self.seq or 0, "end", data)


class ReplyMatcher:
    """Finds the run that answers one message among the events of its conversation.

    A message that joined a run in progress (`when_busy="steer"`) is answered by that run.
    """

    def __init__(self, sent: SentMessage) -> None:
        self._sent = sent
        self._run_id: str | None = None

    def matches(self, event: ConversationEvent) -> bool:
        """Whether the event belongs to the run that answers the message."""
        if event.kind == "run" and event.data.get("envelope_id") == self._sent.envelope_id:
            self._run_id = event.data.get("run_id")
            return True
        if event.kind == "message_received" and self._run_id is None and self._is_seen_in(event):
            self._run_id = event.data.get("run_id")
        return self._run_id is not None and event.data.get("run_id") == self._run_id

    def _is_seen_in(self, event: ConversationEvent) -> bool:
        seen = (one for one in event.data.get("messages") or () if one.get("outcome") == "seen")
        return any(one.get("id") == self._sent.envelope_id for one in seen)

    def requests_approval(self, event: ConversationEvent) -> bool:
        """Whether the event says that the run waits for approval of a tool call. The call may be decided since."""
        return event.kind == "approval" and event.data.get("status") == "requested" and self.matches(event)

    def reply(self, event: ConversationEvent) -> MessageReply | None:
        """Return the reply if this event completes it. Raises if there will be no reply."""
        if event.kind == "end":
            raise Gone(410, str(event.data.get("reason")), f"conversation {self._sent.conversation_id!r} is gone")
        if not self.matches(event):
            return None
        if event.kind == "output":
            return MessageReply(event.text, event.data.get("usage"), event.seq, self._run_id)
        if event.kind == "run":
            reason = event.data.get("reason")
            if event.data.get("status") == "failed":
                raise RunFailed(f"the run failed: {reason or 'no reason given'}", run_id=self._run_id, reason=reason)
            if event.data.get("status") == "stopped":
                told = f"the run was stopped: {reason or 'no reason given'}"
                raise RunStopped(told, run_id=self._run_id, reason=reason)
        return None


def approval_needed(approvals: Sequence[ApprovalInfo]) -> ApprovalNeeded:
    """The error of a wait that cannot end before these calls are decided."""
    tools = ", ".join(approval.tool for approval in approvals)
    commands = "; ".join(f"magent2 approve {quoted(one.session_id)} {quoted(one.call_id)}" for one in approvals)
    told = f"the run waits for approval of {tools}; decide with '{commands}', then wait again"
    return ApprovalNeeded(told, approvals)


def _json_object(text: str) -> JsonObject:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise GatewayFailed(200, "bad_event", "the stream contains an event that is not a JSON object")
    return data
