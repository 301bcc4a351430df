"""A small team on a memory bus, with helpers to send mail to it and to run it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Claim, Describe
from magent2.mail.delivery import SendOptions, deliver
from magent2.models.envelope import MessageEnvelope
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.runner.config import RunnerConfig
from magent2.runner.team.runner import TeamRunner
from magent2.sessions.history import RecordedSettings, settings_record
from magent2.tools.builtins import BuiltinTools, ModelKind
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.runner_adapter import Runner
from tests.support import journaled_runs
from tests.support.journaled_runs import CrashingBus
from tests.support.worker_fixture import LEASE_S

DESK = AgentSpec(
    "desk",
    role="Answers first.",
    instructions="You are the desk.",
    tools=("WebSearchTool", "weather", "echo_context"),
    handoffs=("shop",),
    keywords={"weather": 1},
)
SHOP = AgentSpec(
    "shop",
    role="Sells things.",
    instructions="You are the shop.",
    model="shop-model",
    tools=("product_search", "chat_send"),
    handoffs=("desk",),
    keywords={"price": 2},
)
CHIEF = AgentSpec("chief", role="Routes.", instructions="You route.", handoffs=("desk", "shop"))
STRANGER = AgentSpec("stranger", instructions="You are from elsewhere.")


def roster(*agents: AgentSpec, **more: Any) -> Roster:
    """A scenario `house` of these agents, and one `away` with the stranger."""
    team = {agent.name: agent for agent in agents or (CHIEF, DESK, SHOP)}
    house = Scenario("house", team, root="desk", supervisor="chief" if "chief" in team else None)
    away = Scenario("away", {"stranger": STRANGER}, root="stranger")
    return Roster({"house": house, "away": away}, default="house", **more)


def team_on(url: str, who: Roster | Any = None, kind: ModelKind = "compatible", **options: Any) -> TeamRunner:
    """The team on a model server."""
    config = RunnerConfig(model="any-model", api_key="any", base_url=url)  # pragma: allowlist secret
    return TeamRunner(who or roster(), kind=kind, config=config, **{"builtins": BuiltinTools(), **options})


def mail(bus: Engine, text: str, agent: str = "desk", conversation: str = "one", **more: Any) -> str:
    sending = more.pop("sending", None)
    given = {"sender": "user:ann", "recipient": f"agent:{agent}", "conversation_id": conversation, "content": text}
    return run_sync(bus, deliver, MessageEnvelope(**{**given, **more}), sending).envelope_id


def ask_tool(bus: Engine, tool: str, args: Any, agent: str = "desk") -> str:
    return mail(bus, "", agent, metadata={"tool": tool, "args": args}, sending=SendOptions(kind="tool"))


def ask_route(bus: Engine, text: str, current: str | None = None) -> str:
    metadata = {"scenario_id": "house", "current": current}
    return mail(bus, text, "chief", "routing", metadata=metadata, sending=SendOptions(kind="route"))


def set_session(bus: Engine, settings: RecordedSettings, conversation: str = "one") -> None:
    bus.call(Append(records=(settings_record(conversation, settings),)))


def active_agent(bus: Engine, conversation: str = "one") -> str | None:
    return bus.call(Describe((f"stream:{conversation}",)))[0].head.get("active_agent")


async def work(bus: Engine, runner: Runner, agent: str = "desk", worker: str = "w1") -> Outcome:
    (lane,) = bus.call(Claim(worker=worker, agents=(agent,), limit=1, lease_s=LEASE_S)).lanes
    return await LaneRun(bus, lane, runner).work()


async def work_until_crash(bus: CrashingBus, runner: Runner, agent: str = "desk") -> bool:
    """Run until the simulated crash; return whether it happened. The lane is free afterwards."""
    return await journaled_runs.work_until_crash(
        bus, runner, lambda bus, runner, worker: work(bus, runner, agent, worker)
    )


def replace_tools(agent: AgentSpec, *tools: str, mcp: tuple[str, ...] = ()) -> AgentSpec:
    return replace(agent, tools=tools, mcp=mcp)
