"""Python blocks in journaled runs, on the real sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agents.testing import function_call

from magent2.bus.interface import Engine
from magent2.runner.build import function_tool_of
from magent2.sandbox.interface import BlockLimits, Sandbox
from magent2.sandbox.monty import MontySandbox
from magent2.sandbox.python_tool import PythonTool
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.registry import ToolSpec
from tests.support.journaled_runs import ToolCallScript
from tests.support.worker_fixture import stream

SHORT = BlockLimits(run_s=0.5, turn_s=0.5, whole_s=5.0, memory_bytes=16 << 20, calls=120, output_bytes=8 << 10)
# The time limits also count the time in which a busy machine does not run the process. So they are long for every block
# that ends by itself.
PATIENT = replace(SHORT, run_s=30.0, turn_s=30.0, whole_s=120.0)


def patient_sandbox(processes: int = 2) -> MontySandbox:
    return MontySandbox(PATIENT, processes)


def python_tool(sandbox: Sandbox, *more: ToolSpec | ToolDefinition) -> ToolDefinition:
    tools = [standard_tools().get("chat_send"), standard_tools().get("weather")]
    return PythonTool(sandbox, [*tools, *_definitions(more)]).definition()


def _definitions(tools: Iterable[ToolSpec | ToolDefinition]) -> Sequence[ToolDefinition]:
    return [tool.definition() if isinstance(tool, ToolSpec) else tool for tool in tools]


class Blocks(ToolCallScript):
    """An agent whose model runs this code once and records the result that it is shown."""

    def __init__(self, sandbox: Sandbox, code: str, *tools: ToolSpec | ToolDefinition) -> None:
        super().__init__(function_call("run_python", {"code": code}, call_id="c1"))
        self.made = self.agent(function_tool_of(python_tool(sandbox, *tools)))

    @property
    def text(self) -> str:
        return str(self.results["c1"])


def block_events(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    return [event for event in stream(bus, conversation) if event["event"] == "block"]


def numbers(event: Mapping[str, Any]) -> tuple[str, int, int, int]:
    return event["status"], event["held"], event["sent"], event["failed"]
