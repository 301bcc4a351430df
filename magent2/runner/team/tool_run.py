"""A run of kind `tool`: one tool, asked for by name, without a model.

Its mail says which in its metadata, `{"tool": name, "args": {...}}`. It is journalled as a call that a model makes: a
recorded result is given again, and nothing is run a second time. What goes wrong with the tool is the run's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magent2.bus.records import canonical
from magent2.errors import ArgumentsError, Fenced, Refused, StorageError, TransientError
from magent2.models.envelope import OutputEvent
from magent2.runner.context import RunContext
from magent2.runner.event_mapping import as_text, encodable, failure_in
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.tool_calls import RecordedCall
from magent2.runner.run_stream import RunStream
from magent2.runner.team.graph import local_tools
from magent2.runner.team.spec import TeamMember
from magent2.sandbox.interface import Sandbox
from magent2.tools.builtins import BUILTINS
from magent2.tools.interface import CallScope
from magent2.tools.mcp import McpServers
from magent2.tools.registry import ToolRegistry, may_run

CALL_ID = "tool"
NOT_OF_THE_TOOL = (Fenced, StorageError, TransientError)  # of the log: the worker knows what to do


class ToolRun:
    """One attempt at one call."""

    def __init__(
        self, context: RunContext, member: TeamMember, tools: ToolRegistry, mcp: McpServers, sandbox: Sandbox
    ) -> None:
        self._context = context
        self._member = member
        self._tools = tools
        self._mcp = mcp
        self._sandbox = sandbox
        self._journal = Journal(context)
        metadata = context.envelope.metadata
        self._name = str(metadata.get("tool") or "")
        self._args: Any = metadata.get("args") if metadata.get("args") is not None else {}

    def stream(self) -> RunStream:
        return self._journal.stream(self._work)

    async def _work(self) -> None:
        known = self._name in self._member.tools
        call = RecordedCall(self._journal, 0, CALL_ID, self._name, canonical(self._args), self._context.agent, known)
        record = call.result_record
        if record is not None:
            text = str(record["output"])
        else:
            await call.start()
            text, failure, scope = await self._do(call)
            sends = () if scope is None or failure else scope.sends
            if scope is not None and scope.outcome is not None:
                text = str(await call.finish_with_outcome(scope.outcome, sends))
            else:
                text = str(await call.finish(text, text, failure, sends))
        await self._tell(text)

    async def _do(self, call: RecordedCall) -> tuple[str, str | None, CallScope | None]:
        """What the tool says, why it failed, and the scope that it worked in when it did not."""
        try:
            check_allowed(self._member, self._name)
            if not isinstance(self._args, Mapping):
                raise ArgumentsError(f"the arguments must be an object, not {type(self._args).__name__}")
            with call.running() as scope:
                value = await self._run(dict(self._args))
        except NOT_OF_THE_TOOL:
            raise
        except Exception as error:  # noqa: BLE001  a tool may raise anything; the caller gets the error
            text = encodable(f"{type(error).__name__}: {error}")
            return text, text, None
        text = as_text(value)
        failure = failure_in(value, text)
        return text, failure, scope

    async def _run(self, arguments: dict[str, Any]) -> Any:
        server, dot, tool = self._name.partition(".")
        if dot:
            return await self._mcp.call(server, tool, arguments)
        tools = local_tools(self._tools, self._sandbox, self._mcp, self._member)
        chosen = next((tool for tool in tools if tool.name == self._name), None) or self._tools.get(self._name)
        result = await chosen.run(arguments, self._context)
        return result.tool_message

    async def _tell(self, text: str) -> None:
        context = self._context
        event = OutputEvent(conversation_id=context.conversation_id, text=text)
        named = {"message_id": context.message_id(0)}
        await self._journal.emit({**self._journal.event(event, 0, context.agent), **named})


def check_allowed(member: TeamMember, name: str) -> None:
    """Raise `Refused` for a tool that the agent may not use, and for one that is not run here."""
    if name in BUILTINS:
        raise Refused(f"{name} is run by the model's provider, in the middle of an answer; it cannot be run by name")
    if not may_run(member.tools, member.mcp, name):
        raise Refused(f"agent {member.name!r} may not use tool {name[:80]!r}")
