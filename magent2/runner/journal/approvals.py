"""Tool calls of a journalled run that need a person's approval.

The SDK is told that a call needs approval until a decision is on the log. Then the SDK makes the call, and the journal
runs the tool or, if the call was rejected, returns a text that says so. The SDK keeps no state of its own about it: an
approval may take days, and another worker may continue the run.

A call of a hosted MCP server is made by the provider. The provider is told the decision and makes the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from agents import (
    HostedMCPTool,
    MCPToolApprovalFunction,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    RunContextWrapper,
)

from magent2.models.json_types import encodable
from magent2.runner.context import WaitingCall
from magent2.runner.journal.journal import Journal
from magent2.runner.sdk_run import approval_unavailable
from magent2.sessions.folds import approvable_calls, mcp_approval_requests

# `needs_approval` of a function tool, if it is a function
ApprovalCheck: TypeAlias = Callable[[RunContextWrapper, dict[str, object], str], Awaitable[bool]]


def approval_check(journal: Journal, needs_approval: bool | Callable[..., object]) -> bool | ApprovalCheck:
    """Return the setting that makes the SDK ask for approval where the tool's own setting does, until it is decided."""
    if needs_approval is False:
        return False

    async def check(context: RunContextWrapper, arguments: dict[str, object], call_id: str) -> bool:
        key = journal.last_turn, call_id
        if key in journal.decisions or key in journal.results:
            return False
        needed = needs_approval(context, arguments, call_id) if callable(needs_approval) else needs_approval
        return bool(await needed if inspect.isawaitable(needed) else needed)

    return check


def waiting_calls(journal: Journal, interruptions: Sequence[object]) -> list[WaitingCall]:
    """The calls for which the SDK has interrupted the run. Raises `InvalidInput` for a call that cannot be resumed."""
    speaker = journal.speakers.get(journal.last_turn, journal.context.agent)
    calls = approvable_calls(journal.last_output)
    waiting: list[WaitingCall] = []
    for item in interruptions:
        call_id = _call_id(item)
        if call_id not in calls:
            raise approval_unavailable([item])
        client = journal.context.options.client_tool(calls[call_id][0]) is not None
        waiting.append(WaitingCall(journal.last_turn, call_id, *calls[call_id], speaker, client))
    return waiting


def _call_id(item: object) -> str:
    """The id of a call, which differs from that of its item. A request of a hosted MCP server has only the latter."""
    raw = getattr(item, "raw_item", None)
    fields = raw if isinstance(raw, dict) else vars(raw) if raw is not None else {}
    return str(fields.get("call_id") or fields.get("id") or "")


class JournalledMcpTool(HostedMCPTool):
    """A hosted MCP server whose approval requests are answered from the recorded decisions."""

    def __init__(self, tool: HostedMCPTool, journal: Journal) -> None:
        self.tool_config = tool.tool_config
        self._journal = journal

    @property
    def on_approval_request(self) -> MCPToolApprovalFunction | None:  # type: ignore[override]  # it changes by turn
        # With a function, the SDK calls it for each request of a response. Without one, it interrupts the run with all
        # requests open. So there is a function only once every request of the last response is decided.
        journal = self._journal
        requests = mcp_approval_requests(journal.last_output)
        decided = all((journal.last_turn, str(item["id"])) in journal.decisions for item in requests)
        return self._answer if decided else None

    def _answer(self, request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        rejection = rejection_text(self._journal, (self._journal.last_turn, request.data.id))
        return {"approve": True} if rejection is None else {"approve": False, "reason": rejection}


def rejection_text(journal: Journal, key: tuple[int, str]) -> str | None:
    """What the model sees in place of a result if the call was rejected or its approval expired; else `None`."""
    decision = journal.decisions.get(key)
    if decision is None or decision["status"] == "approved":
        return None
    asked = journal.context.run.asked.get(key)
    if decision["status"] == "expired" and asked is not None and asked.get("client"):
        return "The call has no result: the client did not send its output in time."
    if decision["status"] == "expired":
        return "The call was not made: it was not approved in time."
    text = f"The call was not made: {decision['by']} has rejected it"
    reason = decision.get("reason")
    return encodable(f"{text}: {reason}" if reason else f"{text}.")
