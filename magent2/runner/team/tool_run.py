"""A run of kind `tool`: runs one named tool, without a model.

The metadata of its mail names the tool: `{"tool": name, "args": {...}}`. The call is journalled like the call of a
model: a recorded result is returned again, and the tool does not run twice. An error of the tool is the run's output.
"""

from __future__ import annotations

from magent2.bus.records import canonical
from magent2.errors import ArgumentsError, Fenced, Refused, StorageError, TransientError
from magent2.fair_share import FairThreads
from magent2.models.envelope import OutputEvent
from magent2.models.json_types import JsonObject, encodable
from magent2.runner.context import RunContext
from magent2.runner.event_mapping import as_text, failure_in
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.tool_calls import RecordedCall
from magent2.runner.run_stream import RunStream
from magent2.runner.team.graph import local_tools
from magent2.runner.team.spec import TeamMember
from magent2.sandbox.interface import Sandbox
from magent2.tools.builtins import BUILTINS
from magent2.tools.definition import json_result
from magent2.tools.interface import CallScope, tool_failure
from magent2.tools.mcp import McpServers
from magent2.tools.registry import ToolRegistry, may_run

CALL_ID = "tool"
LOG_ERRORS = (Fenced, StorageError, TransientError)  # not the tool's: the worker handles them


class ToolRun:
    """One attempt at the run."""

    def __init__(
        self,
        context: RunContext,
        member: TeamMember,
        tools: ToolRegistry,
        mcp: McpServers,
        sandbox: Sandbox,
        threads: FairThreads,
    ) -> None:
        self._context = context
        self._member = member
        self._tools = tools
        self._mcp = mcp
        self._sandbox = sandbox
        self._journal = Journal(context, threads)
        metadata = context.envelope.metadata
        self._name = str(metadata.get("tool") or "")
        args: object = metadata.get("args")
        self._args = {} if args is None else args

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
            text, failure, scope = await self._run_tool(call)
            sends = () if scope is None or failure else scope.sends
            if scope is not None and scope.outcome is not None:
                text = str(await call.finish_with_outcome(scope.outcome, sends))
            else:
                text = str(await call.finish(text, text, failure, sends))
        event = OutputEvent(conversation_id=self._context.conversation_id, text=text)
        payload = self._journal.event(event, 0, self._context.agent)
        await self._journal.emit({**payload, "message_id": self._context.message_id(0)})

    async def _run_tool(self, call: RecordedCall) -> tuple[str, str | None, CallScope | None]:
        """Run the tool. Return its text, the reason if it failed, and its call scope unless it raised an error."""
        try:
            check_allowed(self._member, self._name)
            if not isinstance(self._args, dict):
                raise ArgumentsError(f"the arguments must be an object, not {type(self._args).__name__}")
            async with call.running() as scope:
                value = json_result(self._name, await self._invoke(dict(self._args)))
        except LOG_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001  a tool may raise anything; the caller gets the error
            text = encodable(tool_failure(self._name, error).named)
            return text, text, None
        text = as_text(value)
        return text, failure_in(value, text), scope

    async def _invoke(self, arguments: JsonObject) -> object:
        server, dot, tool = self._name.partition(".")
        if dot:
            return await self._mcp.call(server, tool, arguments)
        tools = local_tools(self._tools, self._sandbox, self._mcp, self._member)
        chosen = next((tool for tool in tools if tool.name == self._name), None) or self._tools.get(self._name)
        result = await chosen.run(arguments, self._context)
        return result.tool_message


def check_allowed(member: TeamMember, name: str) -> None:
    """Raise `Refused` for a tool that the agent may not use, and for one that the model's provider runs."""
    if name in BUILTINS:
        raise Refused(f"{name} runs at the model's provider, as part of a model call; it cannot be run by name")
    if not may_run(member.tools, member.mcp, name):
        raise Refused(f"agent {member.name!r} may not use tool {name[:80]!r}")
