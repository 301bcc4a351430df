"""Results that JSON cannot hold: each fails its call, and the run goes on."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from agents import Tool, function_tool

from magent2.bus.memory import MemoryBus
from magent2.models.envelope import OutputEvent, TokenEvent, ToolStepEvent
from magent2.roster.spec import McpServer
from magent2.runner.build import function_tool_of
from magent2.runner.team.runner import TeamRunner
from magent2.sandbox.interface import Sandbox
from magent2.tools.definition import ToolDefinition, ToolExecutionResult, ToolSignature
from magent2.tools.registry import ToolRegistry, tool
from magent2.worker.lane_run import LaneRun, Outcome
from tests.support import hostile_mcp_server
from tests.support.blocks import Blocks, patient_sandbox
from tests.support.journaled_runs import script_call, tool_steps, work
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.runners import SyncRunner
from tests.support.team import DESK, ask_tool, mail, replace_tools, roster, team_on
from tests.support.team import work as work_team
from tests.support.worker_fixture import claim_one, dead_letters, outputs, send, stream


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


class Textless:
    """An object that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class HostileDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")

    def get(self, *args: Any) -> Any:
        raise RuntimeError("no get")

    __iter__ = __len__ = items
    __repr__ = Textless.__repr__


class Colour(StrEnum):
    RED = "red"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = [1]
    value += [value, value]
    return value


def cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = {"b": value}
    return value


# What a tool may return by mistake or on purpose, and a word of the reason that its caller gets.
UNUSABLE: dict[str, tuple[Callable[[], object], str]] = {
    "nan": (lambda: float("nan"), "nan"),
    "infinity": (lambda: float("-inf"), "-inf"),
    "1e400": (lambda: {"a": [1e400]}, "'a.0'"),
    "bytes": (lambda: b"\xff", "bytes"),
    "nested bytes": (lambda: {"file": bytearray(b"x")}, "'file'"),
    "set": (lambda: {1, 2}, "set"),
    "nested set": (lambda: {"a": {"b": frozenset({1})}}, "'a.b'"),
    "cyclic list": (cyclic_list, "contains itself"),
    "cyclic dict": (cyclic_dict, "contains itself"),
    "too deep": (lambda: nested(100_000), "deep"),
    "deep": (lambda: nested(600), "deep"),
    "object without text": (Textless, "Textless"),
    "nested object without text": (lambda: {"ok": False, "error": Textless()}, "'error'"),
    "integer of too many digits": (lambda: 10**5000, "digits"),
    "two keys that become one": (lambda: {"1": "a", 1: "b"}, "'1'"),
    "key that is no text": (lambda: {(1, 2): "a"}, "key"),
}
# Unusual values that JSON can hold, and what the caller gets.
USABLE: dict[str, tuple[Callable[[], object], str]] = {
    "subclass of str": (lambda: Colour.RED, "red"),
    "nested subclass of str": (lambda: {"colour": Colour.RED}, '{"colour": "red"}'),
    "subclass of dict": (lambda: HostileDict(a=1), '{"a": 1}'),
    "read-only mapping": (lambda: MappingProxyType({"a": 1}), '{"a": 1}'),
    "lone surrogate": (lambda: {"a": "x\ud800", "\udfff": 1}, '{"a": "x?", "?": 1}'),
    "tuple": (lambda: (1, (2.5, None, True)), "[1, [2.5, null, true]]"),
    "integer of more than 64 bits": (lambda: {"a": 2**70}, '{"a": "1180591620717411303424"}'),
}


def of_the_sdk(make: Callable[[], object]) -> Tool:
    @function_tool
    def give() -> Any:
        """Give it."""
        return make()

    return give


def of_a_function(make: Callable[[], object]) -> Tool:
    return function_tool_of(registered(make))


def of_a_definition(make: Callable[[], object]) -> Tool:
    async def execute(arguments: object, context: object) -> ToolExecutionResult[object]:
        return ToolExecutionResult(make(), make())

    signature = ToolSignature("give", "Give it.", {"type": "object", "properties": {}})
    return function_tool_of(ToolDefinition(signature, {}, execute))


def registered(make: Callable[[], object]) -> ToolDefinition:
    @tool
    def give() -> Any:
        """Give it."""
        return make()

    return give.definition()


KINDS_OF_TOOL = pytest.mark.parametrize("make_tool", [of_the_sdk, of_a_function, of_a_definition])


@KINDS_OF_TOOL
@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_result_that_json_cannot_hold_fails_its_call_and_the_run_goes_on(
    bus: MemoryBus, make_tool: Callable[..., Tool], name: str
) -> None:
    make, reason = UNUSABLE[name]
    script = script_call("give")
    send(bus, "go")

    assert await work(bus, script.agent(make_tool(make))) is Outcome.ANSWERED
    started, (status, error) = tool_steps(bus)
    assert (started[0], status, outputs(bus)) == ("start", "error", ["done"])
    assert reason in str(error), error
    assert "give ran, but its result" in script.results["c1"]


@KINDS_OF_TOOL
@pytest.mark.parametrize("name", USABLE)
async def test_an_unusual_result_that_json_can_hold_reaches_the_model(
    bus: MemoryBus, make_tool: Callable[..., Tool], name: str
) -> None:
    make, expected = USABLE[name]
    script = script_call("give")
    send(bus, "go")

    assert await work(bus, script.agent(make_tool(make))) is Outcome.ANSWERED
    assert (tool_steps(bus)[1], script.results["c1"]) == (("success", None), expected)


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = patient_sandbox()
    yield sandbox
    await sandbox.aclose()


@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_block_can_catch_that_a_result_is_unusable(bus: MemoryBus, sandbox: Sandbox, name: str) -> None:
    code = "try:\n    give()\n    said = 'nothing'\nexcept Exception as error:\n    said = str(error)\nsaid"
    blocks = Blocks(sandbox, code, registered(UNUSABLE[name][0]))
    send(bus, "go")

    assert await work(bus, blocks.made) is Outcome.ANSWERED
    assert "give ran, but its result" in blocks.text


@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_tool_that_is_run_by_name_fails_with_the_reason(bus: MemoryBus, name: str) -> None:
    make, reason = UNUSABLE[name]
    tools = ToolRegistry([registered(make)])
    ask_tool(bus, "give", {})

    runner = TeamRunner(roster(replace_tools(DESK, "give")), kind="demo", tools=tools)
    assert await work_team(bus, runner) is Outcome.ANSWERED
    (text,) = outputs(bus)
    assert text.startswith("ResultError: give ran")
    assert reason in text


# Results of an MCP server, as it writes them: JSON text that Python's parser accepts or not.
MCP_RESULTS = {
    "nan": '{"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": NaN}}',
    "1e400": '{"content": [], "structuredContent": {"a": 1e400}}',
    "no content": '{"isError": false}',
    "image": '{"content": [{"type": "image", "data": "%%%", "mimeType": "x"}]}',
}


@pytest.mark.parametrize("name", MCP_RESULTS)
async def test_no_result_of_an_mcp_server_ends_the_run(bus: MemoryBus, name: str) -> None:
    server = McpServer("hostile", (sys.executable, hostile_mcp_server.__file__), env={"MCP_RESULT": MCP_RESULTS[name]})
    mail(bus, "take it")
    with ModelServer([Reply(calls=[Call("hostile__take", {})]), Reply("Taken.")]) as model:
        runner = team_on(model.url, roster(replace_tools(DESK, mcp=("hostile",)), mcp={"hostile": server}))
        try:
            assert await work_team(bus, runner) is Outcome.ANSWERED
        finally:
            await runner.aclose()

    assert outputs(bus) == ["Taken."]


def hostile_events(conversation: str) -> list[Any]:
    """Events of a runner of another author: models and dicts, with values that JSON cannot hold."""
    return [
        TokenEvent(conversation_id=conversation, text="a\ud800", index=0),
        ToolStepEvent(conversation_id=conversation, name="t", args={"x": float("nan"), "y": {1}, "z": b"\xff"}),
        {"event": "note", "conversation_id": conversation, "data": cyclic_dict()},
        {"event": "note", "conversation_id": conversation, "data": [Textless(), nested(600), 10**5000, (1,)]},
        {"event": "note", "conversation_id": conversation, 7: "a number as a key"},
        {"event": "note", "conversation_id": conversation, "run_id": 7, "message_id": ["x"], "agent": {1}},
        {"event": "token", "conversation_id": conversation, "text": "b", "run_id": "", "message_id": "\x00"},
        HostileDict(event="note", conversation_id=conversation),
        OutputEvent.model_construct(
            conversation_id=conversation, text="fine", usage={"input_tokens": float("inf"), "n": Textless()}
        ),
    ]


async def test_no_event_of_a_foreign_runner_ends_its_run(bus: MemoryBus) -> None:
    runner = SyncRunner(lambda envelope: hostile_events(envelope.conversation_id))
    send(bus, "go")

    assert await LaneRun(bus, claim_one(bus), runner).work() is Outcome.ANSWERED
    assert dead_letters(bus) == []
    events = stream(bus)
    assert [event["text"] for event in events if event["event"] in ("token", "output")] == ["a?", "b", "fine"]
    (step,) = (event for event in events if event["event"] == "tool_step")
    assert step["args"]["x"] == "nan"
    assert len([event for event in events if event["event"] == "note"]) == 5
