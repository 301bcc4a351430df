"""Calls of a journalled run that need a person's approval.

The SDK is told that a call needs one until a decision is on the log; then it makes the call, and the journal gives the
tool's result, or, where the call was rejected, the words that say so. Nothing of it has to be kept by the SDK. What a
hosted MCP server wants approved is not called here: its provider is told what was decided, and makes the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from agents import HostedMCPTool, MCPToolApprovalFunctionResult, MCPToolApprovalRequest

from magent2.runner.context import WaitingCall
from magent2.runner.event_mapping import encodable
from magent2.runner.journal.journal import Journal
from magent2.runner.sdk_run import approval_unavailable
from magent2.sessions.folds import approvable_calls, mcp_approval_requests

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
    calls = approvable_calls(journal.previous.get("output", ()))
    found: list[WaitingCall] = []
    for item in interruptions:
        call_id = _call_id(item)
        if call_id not in calls:
            raise approval_unavailable([item])
        found.append(WaitingCall(turn, call_id, *calls[call_id], speaker))
    return found


def _call_id(item: Any) -> str:
    """A call has an id beside that of its item; a request of a hosted MCP server has that one alone."""
    raw = getattr(item, "raw_item", None)
    facts = raw if isinstance(raw, dict) else vars(raw) if raw is not None else {}
    return str(facts.get("call_id") or facts.get("id") or "")


class JournalledMcp(HostedMCPTool):
    """A hosted MCP server whose requests are answered by what was decided, and wait while something is not.

    The SDK asks the function of the server, if there is one, about each request of an answer, and else ends the run
    with all of them open. So there is one when all of them are decided on.
    """

    def __init__(self, tool: HostedMCPTool, journal: Journal) -> None:
        self.tool_config = tool.tool_config
        self._journal = journal

    @property
    def on_approval_request(self) -> Any:  # type: ignore[override]  # whether there is one changes from turn to turn
        turn, output = self._journal.turn - 1, self._journal.previous.get("output", ())
        decided = all((turn, str(item["id"])) in self._journal.decisions for item in mcp_approval_requests(output))
        return self._answer if decided else None

    def _answer(self, request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        refusal = refusal_of(self._journal, (self._journal.turn - 1, request.data.id))
        return {"approve": True} if refusal is None else {"approve": False, "reason": refusal}


def refusal_of(journal: Journal, key: tuple[int, str]) -> str | None:
    """What the model is told instead of a result, when its call was not approved."""
    decision = journal.decisions.get(key)
    if decision is None or decision["status"] == "approved":
        return None
    if decision["status"] == "expired":
        return "The call was not made: it was not approved in time."
    reason = decision.get("reason")
    told = f"The call was not made: {decision['by']} has rejected it"
    return encodable(f"{told}: {reason}" if reason else f"{told}.")
