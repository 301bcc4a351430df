"""Handoffs, MCP tools and agents as tools in a journalled run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents import (
    Agent,
    RunContextWrapper,
    handoff,
)
from agents.mcp import MCPServer
from agents.testing import assistant_message, function_call
from mcp.types import CallToolResult, GetPromptResult, ListPromptsResult, TextContent
from mcp.types import Tool as MCPTool

from magent2.bus.memory import MemoryBus
from magent2.tools.chat import chat_send, send_message
from tests.support.journaled_runs import (
    CallbackModel,
    CrashingBus,
    Items,
    ToolCallScript,
    message_contents,
    recorded,
    results_in,
    script_call,
    work,
    work_until_crash,
)
from tests.support.worker_fixture import AGENT, outputs, stream

# --- handoffs


async def test_a_handoff_emits_one_event_and_its_callback_runs_once(bus: MemoryBus) -> None:
    called: list[str] = []

    def on_handoff(context: RunContextWrapper[Any]) -> None:
        called.append("handed over")
        send_message("agent:Cy", "Bea has it now", context=context.context)

    shown = ToolCallScript(function_call("transfer_to_bea", {}, call_id="c1"))
    bea = Agent[Any](name="Bea", model=CallbackModel(shown.say))
    agent = shown.agent(handoffs=[handoff(bea, on_handoff=on_handoff)])
    assert await work_until_crash(CrashingBus(bus, on="tool", after=True), agent)
    await work(bus, agent)

    assert called == ["handed over"]
    assert message_contents(bus, "chat:Cy") == ["Bea has it now"]
    (event,) = (event for event in stream(bus) if event["event"] == "handoff")
    assert (event["source"], event["target"]) == (AGENT, "Bea")
    assert [event["agent"] for event in stream(bus) if event["event"] == "output"] == ["Bea"]


async def test_agents_may_hand_off_in_circles(bus: MemoryBus) -> None:
    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        order = (function_call("transfer_to_bea", {}, call_id="h1"), function_call("transfer_to_ada", {}, call_id="h2"))
        done = len(results_in(items))
        return [order[done]] if done < len(order) else [assistant_message("back again")]

    model = CallbackModel(say)
    ada, bea = Agent[Any](name=AGENT, model=model), Agent[Any](name="Bea", model=model)
    ada.handoffs, bea.handoffs = [bea], [handoff(ada)]

    await work(bus, ada)

    handoffs = [(event["source"], event["target"]) for event in stream(bus) if event["event"] == "handoff"]
    assert handoffs == [(AGENT, "Bea"), ("Bea", AGENT)]
    assert outputs(bus) == ["back again"]
    assert ada.handoffs == [bea]


async def test_a_second_handoff_in_one_response_is_recorded_too(bus: MemoryBus) -> None:
    shown = ToolCallScript(
        function_call("transfer_to_bea", {}, call_id="c1"),
        function_call("transfer_to_cy", {"reason": "x"}, call_id="c2"),
    )
    model = CallbackModel(shown.say)
    agent = shown.agent(handoffs=[Agent(name="Bea", model=model), Agent(name="Cy", model=model)])

    await work(bus, agent)

    assert recorded(bus)["c1"]["output"] == '{"assistant": "Bea"}'
    assert recorded(bus)["c2"]["output"].startswith("Multiple handoffs detected")


# --- MCP tools and agents as tools


class LocalServer(MCPServer):
    """An MCP server in this process, with one tool."""

    def __init__(self) -> None:
        super().__init__()
        self.called = 0

    @property
    def name(self) -> str:
        return "server"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, *args: Any, **options: Any) -> list[MCPTool]:
        return [MCPTool(name="fetch", input_schema={"type": "object", "properties": {}})]

    async def call_tool(self, *args: Any, **options: Any) -> CallToolResult:
        self.called += 1
        return CallToolResult(content=[TextContent(type="text", text="a book")])

    async def list_prompts(self) -> ListPromptsResult:
        return ListPromptsResult(prompts=[])

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        raise LookupError(name)


async def test_a_tool_of_an_mcp_server_is_journalled_too(bus: MemoryBus) -> None:
    server = LocalServer()
    shown = script_call("fetch")
    assert await work_until_crash(CrashingBus(bus, on="tool", after=True), shown.agent(mcp_servers=[server]))

    await work(bus, shown.agent(mcp_servers=[server]))

    assert server.called == 1
    assert "a book" in str(shown.results["c1"])


async def test_an_agent_as_a_tool_is_one_call_and_its_sends_are_held(bus: MemoryBus) -> None:
    inner = script_call("chat_send", recipient="agent:Cy", content="news")
    helper = inner.agent(chat_send).as_tool("helper", "Helps.")
    shown = script_call("helper", input="help")

    assert await work_until_crash(CrashingBus(bus, on="tool"), shown.agent(helper))
    assert message_contents(bus, "chat:Cy") == []
    await work(bus, shown.agent(helper))

    assert message_contents(bus, "chat:Cy") == ["news"]
    assert recorded(bus)["c1"]["output"] == "done"
