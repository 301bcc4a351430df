"""Calls of a journalled run that need a person's approval.

The SDK is told that a call needs one until a decision is on the log; then it makes the call, and the journal gives the
tool's result, or, where the call was rejected, the words that say so. Nothing of it has to be kept by the SDK.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from magent2.runner.context import WaitingCall
from magent2.runner.event_mapping import encodable
from magent2.runner.journal import Journal
from magent2.runner.result import nobody_to_ask
from magent2.sessions.views import calls_of

Asks: TypeAlias = Callable[[Any, dict[str, Any], str], Awaitable[bool]]


def asking(journal: Journal, setting: bool | Callable[..., Any]) -> bool | Asks:
    """Whether a person is to be asked about a call, as the SDK asks it; `setting` is the tool's own word."""
    if setting is False:
        return False

    async def asks(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        key = journal.turn - 1, call_id
        if key in journal.decisions or key in journal.results:
            return False
        answer = setting(context, arguments, call_id) if callable(setting) else setting
        return bool(await answer if inspect.isawaitable(answer) else answer)

    return asks


def waiting_calls(journal: Journal, interruptions: Sequence[Any]) -> list[WaitingCall]:
    """The calls that the SDK would not make; `InvalidInput` for those that are not the journal's to make later."""
    turn = journal.turn - 1
    speaker = journal.speakers.get(turn, journal.context.agent)
    calls = {call["call_id"]: call for call in calls_of(journal.previous.get("output", ()))}
    found: list[WaitingCall] = []
    for item in interruptions:
        call = calls.get(_call_id(item))
        if call is None:
            raise nobody_to_ask([item])
        found.append(WaitingCall(turn, call["call_id"], call["name"], str(call.get("arguments") or ""), speaker))
    return found


def _call_id(item: Any) -> str:
    raw = getattr(item, "raw_item", None)
    found = raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)
    return str(found or "")


def refusal_of(journal: Journal, key: tuple[int, str]) -> str | None:
    """What the model is told instead of a result, when its call was not approved."""
    decision = journal.decisions.get(key)
    if decision is None or decision["status"] == "approved":
        return None
    if decision["status"] == "expired":
        return "The call was not made: nobody has approved it in time."
    reason = decision.get("reason")
    told = f"The call was not made: {decision['by']} has rejected it"
    return encodable(f"{told}: {reason}" if reason else f"{told}.")
