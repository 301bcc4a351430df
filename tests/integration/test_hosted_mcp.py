"""Calls of a hosted MCP server that need approval, as the provider receives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.sessions.approvals import ApprovalDecision, decide_approval, find_approvals
from magent2.tools.builtins import BuiltinTools
from magent2.worker.lane_run import Outcome
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.model_server import ModelServer, Reply
from tests.support.team import DESK, mail, roster, team_on, work
from tests.support.worker_fixture import outputs, stream

CLERK = replace(DESK, tools=("HostedMCPTool",), approval=("HostedMCPTool",), handoffs=())
SETTINGS = {
    "BUILTIN_TOOLS_ENABLED": "HostedMCPTool",
    "HOSTED_MCP_URL": "https://mcp.example",
    "HOSTED_MCP_TOKEN": "any",  # pragma: allowlist secret
    "HOSTED_MCP_TOOLS": "delete",
}


def request(name: str) -> dict[str, Any]:
    """What the provider says when it wants to delete a file."""
    facts = {"id": f"mcpr_{name}", "name": "delete", "arguments": f'{{"file": "{name}"}}', "server_label": "hosted"}
    return {"type": "mcp_approval_request", **facts}


def call(name: str) -> dict[str, Any]:
    """What it says when it has."""
    return {**request(name), "type": "mcp_call", "id": f"mcp_{name}", "output": "gone", "error": None}


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


async def work_on(bus: Engine, server: ModelServer) -> Outcome:
    """By a worker that knows only what is on the log."""
    runner = team_on(server.url, roster(CLERK), kind="openai", builtins=BuiltinTools.read(SETTINGS))
    outcome = await work(bus, runner)
    await runner.aclose()
    return outcome


def decide(bus: Engine, name: str, decision: ApprovalDecision, reason: str | None = None) -> None:
    run_sync(bus, decide_approval, "one", f"mcpr_{name}", decision, "user:ann", reason)


def responses(request: dict[str, Any]) -> list[tuple[str, bool, str | None]]:
    items = [item for item in request["input"] if item.get("type") == "mcp_approval_response"]
    return [(item["approval_request_id"], item["approve"], item.get("reason")) for item in items]


async def test_a_request_of_a_hosted_server_waits_for_a_person_and_its_provider_is_told_the_decision(
    bus: Engine,
) -> None:
    replies = [Reply(items=[request("a")]), Reply("It is gone.", items=[call("a")]), Reply("You are welcome.")]
    with ModelServer(replies) as server:
        mail(bus, "delete a")
        assert await work_on(bus, server) is Outcome.PAUSED
        (asked,) = run_sync(bus, find_approvals, "one")
        decide(bus, "a", "approve")
        assert await work_on(bus, server) is Outcome.ANSWERED
        mail(bus, "thanks")
        assert await work_on(bus, server) is Outcome.ANSWERED

    first, second, third = server.requests
    assert (asked.call_id, asked.name, asked.args) == ("mcpr_a", "hosted.delete", {"file": "a"})
    assert first["tools"][0]["require_approval"] == "always"
    assert [item for item in second["input"] if item.get("type") == "mcp_approval_request"] == [request("a")]
    assert responses(second) == [("mcpr_a", True, None)]
    assert [item.get("role") for item in third["input"]] == ["user", "assistant", "user"]
    assert outputs(bus) == ["It is gone.", "You are welcome."]
    statuses = [event["status"] for event in stream(bus) if event["event"] == "approval"]
    assert statuses == ["requested", "approved"]


async def test_requests_of_one_answer_are_decided_on_one_by_one(bus: Engine) -> None:
    replies = [Reply("Two files.", items=[request("a"), request("b")]), Reply("One is gone.", items=[call("a")])]
    with ModelServer(replies) as server:
        mail(bus, "delete a and b")
        assert await work_on(bus, server) is Outcome.PAUSED
        decide(bus, "b", "reject", "it is mine")
        assert await work_on(bus, server) is Outcome.PAUSED
        decide(bus, "a", "approve")
        assert await work_on(bus, server) is Outcome.ANSWERED

    reason = "The call was not made: user:ann has rejected it: it is mine"
    assert len(server.requests) == 2
    assert sorted(responses(server.requests[1])) == [("mcpr_a", True, None), ("mcpr_b", False, reason)]
    assert outputs(bus) == ["One is gone."]


async def test_a_hosted_tool_without_support_for_approval_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bus = MemoryBus()
    agent = replace(CLERK, tools=("WebSearchTool", "weather"), approval=("WebSearchTool",))
    with ModelServer([Reply("Hello.")]) as server:
        mail(bus, "hello")
        runner = team_on(server.url, roster(agent), kind="openai", builtins=BuiltinTools.read({}))
        assert await work(bus, runner) is Outcome.ANSWERED
        await runner.aclose()

    assert [tool["name"] for tool in server.requests[0]["tools"]] == ["weather"]
    assert "tools left out: their provider cannot ask for approval" in caplog.messages
    bus.close()
