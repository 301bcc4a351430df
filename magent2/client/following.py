"""Where a follower is, and what it waits for. Pure: the clients bring the connection."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from magent2.client.calls import stream_path
from magent2.client.values import Answer, Sent, StreamEvent
from magent2.errors import GatewayBusy, GatewayFailed, GatewayUnreachable, Gone, RunFailed, RunStopped, TransientError

RETRY_S = 1.0  # until the gateway says otherwise
RETRY_MIN_S, RETRY_MAX_S = 0.05, 10.0
PATIENCE_S = 30.0  # without a word from the gateway
BACKOFF_FIRST_S = 0.1

WAITING_KINDS = ("run", "output")  # all that `wait` has to see


class Patience:
    """How often and how long to try again. Each success begins anew."""

    def __init__(self, patience_s: float, first_s: float = BACKOFF_FIRST_S) -> None:
        self._patience_s = patience_s
        self._first_s = first_s
        self._failures = 0
        self._since: float | None = None

    def reset(self) -> None:
        self._failures, self._since = 0, None

    def pause(self, error: TransientError, now: float, first_s: float | None = None) -> float:
        """How long to wait before the next try; raises the error when there has been time enough."""
        self._since = now if self._since is None else self._since
        left = self._since + self._patience_s - now
        if left <= 0:
            raise error
        asked = error.retry_after_s if isinstance(error, GatewayBusy) else None
        delay = asked or min((first_s or self._first_s) * 2**self._failures, RETRY_MAX_S)
        self._failures = min(self._failures + 1, 16)
        return min(delay * random.uniform(0.8, 1.2), left)  # noqa: S311  spreads clients, guards nothing


def may_repeat(error: TransientError, repeatable: bool) -> bool:
    """Whether a request that failed so may be sent again."""
    return repeatable or not (isinstance(error, GatewayUnreachable) and error.sent)


class Frame(Protocol):
    """A server-sent event as the HTTP client parses it. `id` is the last id seen, also for an event without one."""

    @property
    def event(self) -> str: ...

    @property
    def data(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def retry(self) -> int | None: ...


class Following:
    """One follower over all its connections: its cursor, and whether there is more to come."""

    def __init__(self, conversation_id: str, since: int | None = None, kinds: Iterable[str] | None = None) -> None:
        self.path = stream_path(conversation_id)
        self.cursor = since
        self.retry_s = RETRY_S
        self.ended = False
        self._conversation_id = conversation_id
        self._kinds = None if kinds is None else ",".join(kinds)

    @property
    def params(self) -> dict[str, str]:
        given = {"since": self.cursor, "kinds": self._kinds}
        return {name: str(value) for name, value in given.items() if value is not None}

    def take(self, frame: Frame) -> StreamEvent | None:
        """Move on by one frame; the event in it, if it is one for the caller."""
        if frame.retry is not None:
            self.retry_s = min(max(frame.retry / 1000, RETRY_MIN_S), RETRY_MAX_S)
        data = _object(frame.data) if frame.data else None
        if frame.event == "end":
            # After a drain another gateway, or this one again, goes on.
            return None if (data or {}).get("reason") == "drain" else self._end(data or {})
        if frame.event == "gap" and data is not None:
            self.cursor = int(data.get("floor", 0))
            return StreamEvent(self.cursor, "gap", data)
        if frame.id:
            self.cursor = _number(frame.id)
        return None if data is None else StreamEvent(self.cursor or 0, frame.event, data)

    def gone(self) -> StreamEvent:
        """There is no stream (204): the conversation was deleted, or is not for this reader any more."""
        return self._end({"event": "end", "conversation_id": self._conversation_id, "reason": "deleted"})

    def _end(self, data: Mapping[str, Any]) -> StreamEvent:
        self.ended = True
        return StreamEvent(self.cursor or 0, "end", data)


class Awaiting:
    """Waits for the run that answers one message, and tells its events from those of others."""

    def __init__(self, sent: Sent) -> None:
        self.over = False
        self._sent = sent
        self._run_id: str | None = None

    def is_ours(self, event: StreamEvent) -> bool:
        if event.kind == "run" and event.data.get("envelope_id") == self._sent.envelope_id:
            self._run_id = event.data.get("run_id")
            return True
        return self._run_id is not None and event.data.get("run_id") == self._run_id

    def take(self, event: StreamEvent) -> Answer | None:
        """The answer, once it is there; raises when there will be none."""
        if event.kind == "end":
            raise Gone(410, str(event.data.get("reason")), f"conversation {self._sent.conversation_id!r} is gone")
        if not self.is_ours(event):
            return None
        if event.kind == "output":
            self.over = True
            return Answer(event.text, event.data.get("usage"), event.seq, self._run_id)
        if event.kind == "run":
            self._check(event)
        return None

    def _check(self, event: StreamEvent) -> None:
        status, reason = event.data.get("status"), event.data.get("reason")
        if status == "failed":
            self.over = True
            raise RunFailed(f"the run failed: {reason or 'no reason given'}", run_id=self._run_id, reason=reason)
        if status == "stopped":
            self.over = True
            raise RunStopped(f"the run was stopped: {reason or 'no reason given'}", run_id=self._run_id, reason=reason)


def _object(text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise GatewayFailed(200, "bad_event", "the stream carries an event that is no JSON object")
    return data


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise GatewayFailed(200, "bad_event", f"the stream carries the cursor {text[:40]!r}, which is no number")
    return int(text)
