"""What the spans of a run say: the tree, a takeover, what failed, and that nothing of it is what was said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from opentelemetry import trace
from prometheus_client import CollectorRegistry

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Leave
from magent2.errors import ModelRefused, ModelUnavailable
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.providers.calls import Candidate
from magent2.runner.providers.provider import AgentModels
from magent2.telemetry.metrics import RunMetrics
from magent2.telemetry.observation import RunObserver
from magent2.tools.chat import function_tools
from magent2.worker.lane_run import LaneRun, Outcome
from magent2.worker.runner_adapter import Runner
from tests.support.audit import whole_log
from tests.support.blocks import Blocks, patient_sandbox
from tests.support.journaled_runs import TURNS_OF_LOOP, CallbackModel, CrashingBus, ToolCallScript
from tests.support.runners import FailingRunner
from tests.support.spans import Spans, id_of, parent_of, recorded_spans
from tests.support.worker_fixture import AGENT, LEASE_S, send

SECRET = "the treasure is under the oak"  # pragma: allowlist secret
CAUSE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@function_tool
async def dig(place: str) -> str:
    """Dig there."""
    return f"{SECRET}: {place}"


@function_tool
async def stumble(place: str) -> str:
    """Fail there."""
    raise ValueError(SECRET)


def digging(*calls: tuple[str, str]) -> OpenAIAgentsRunner:
    asked = [function_call(name, {"place": SECRET}, call_id=call_id) for name, call_id in calls]
    return OpenAIAgentsRunner(ToolCallScript(*asked).agent(dig, stumble))


async def work(
    bus: Engine, runner: Runner, spans: Spans, worker: str = "w1", metrics: RunMetrics | None = None
) -> Outcome:
    (lane,) = bus.call(Claim(worker=worker, agents=(AGENT,), limit=1, lease_s=LEASE_S)).lanes
    run = LaneRun(bus, lane, runner, observer=RunObserver(metrics, spans.tracer))
    return await asyncio.create_task(run.work())


def facts(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


async def test_a_run_has_turns_and_a_turn_has_its_model_call_and_its_tools() -> None:
    bus = MemoryBus()
    send(bus, SECRET)
    with recorded_spans() as spans:
        await work(bus, digging(("dig", "c1"), ("dig", "c2")), spans)

        run = spans.one(f"invoke_agent {AGENT}")
        first, second = spans.of("turn")
        chats = spans.of("chat CallbackModel")
        tools = spans.of("execute_tool dig")
        assert [parent_of(turn) for turn in (first, second)] == [id_of(run)] * 2
        assert [parent_of(chat) for chat in chats] == [id_of(first), id_of(second)]
        assert [parent_of(tool) for tool in tools] == [id_of(first)] * 2
        assert {facts(tool)["gen_ai.tool.call.id"] for tool in tools} == {"c1", "c2"}
        assert facts(run)["magent2.run.outcome"] == "answered"
        assert facts(chats[0])["gen_ai.response.finish_reasons"] == ("tool_call",)
        assert "gen_ai.usage.input_tokens" in facts(chats[0])
        assert "gen_ai.response.time_to_first_chunk" in facts(chats[0])
    bus.close()


async def test_nothing_that_was_said_is_in_a_span() -> None:
    bus = MemoryBus()
    send(bus, SECRET)
    with recorded_spans() as spans:
        await work(bus, digging(("dig", "c1"), ("stumble", "c2")), spans)

        assert spans.of("execute_tool stumble")
        assert not [span.name for span in spans.all if SECRET in span.to_json()]
    bus.close()


async def test_what_was_said_is_there_in_the_form_of_the_conventions_for_those_who_asked() -> None:
    bus = MemoryBus()
    send(bus, SECRET)
    with recorded_spans(content=True) as spans:
        await work(bus, digging(("dig", "c1")), spans)

        first, last = (facts(chat) for chat in spans.of("chat CallbackModel"))
        tool = facts(spans.one("execute_tool dig"))
        asked, answered = json.loads(first["gen_ai.input.messages"]), json.loads(first["gen_ai.output.messages"])
        assert asked == [{"role": "user", "parts": [{"type": "text", "content": SECRET}]}]
        assert answered[0]["parts"][0]["type"] == "tool_call"
        assert answered[0]["finish_reason"] == "tool_call"
        assert json.loads(last["gen_ai.input.messages"])[-1]["parts"][0]["type"] == "tool_call_response"
        assert json.loads(last["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "done"}]
        assert SECRET in tool["gen_ai.tool.call.arguments"]
        assert SECRET in tool["gen_ai.tool.call.result"]
    bus.close()


async def test_a_tool_that_fails_is_named_by_the_kind_of_its_error() -> None:
    bus = MemoryBus()
    send(bus, "go")
    with recorded_spans() as spans:
        await work(bus, digging(("stumble", "c1")), spans)

        tool = spans.one("execute_tool stumble")
        assert tool.status.status_code is trace.StatusCode.ERROR
        assert facts(tool)["error.type"] == "ValueError"
        assert spans.one(f"invoke_agent {AGENT}").status.status_code is trace.StatusCode.UNSET
    bus.close()


async def test_a_run_that_fails_says_how_it_ended_and_why() -> None:
    bus = MemoryBus()
    send(bus, "go")
    with recorded_spans() as spans:
        await work(bus, FailingRunner(ModelRefused(SECRET)), spans)

        run = facts(spans.one(f"invoke_agent {AGENT}"))
        assert (run["magent2.run.outcome"], run["error.type"]) == ("buried", "ModelRefused")
    bus.close()


async def test_a_run_belongs_to_what_caused_it_and_a_takeover_is_linked_to_the_first_attempt() -> None:
    bus = MemoryBus()
    send(bus, "go", sending=_caused())
    with recorded_spans() as spans:
        await _die_at_tool(bus, spans)

        await work(bus, digging(("dig", "c1")), spans, "heir")

        dead, heir = spans.of(f"invoke_agent {AGENT}")
        assert {f"{span.parent.span_id:016x}" for span in (dead, heir) if span.parent} == {CAUSE.split("-")[2]}
        assert [link.context.span_id for link in heir.links] == [id_of(dead)]
        assert [facts(span)["magent2.run.attempt"] for span in (dead, heir)] == [1, 2]
        assert facts(dead)["magent2.run.id"] == facts(heir)["magent2.run.id"]
        assert facts(dead)["magent2.run.outcome"] == "abandoned"
    bus.close()


async def test_a_replayed_turn_has_no_model_call_but_its_tools_have_a_turn() -> None:
    bus = MemoryBus()
    send(bus, "go")
    with recorded_spans() as spans:
        await _die_at_tool(bus, spans)
        before = len(spans.all)

        await work(bus, digging(("dig", "c1")), spans, "heir")

        assert sorted(span.name for span in spans.all[before:]) == [
            "chat CallbackModel",
            "execute_tool dig",
            f"invoke_agent {AGENT}",
            "turn",
            "turn",
        ]
    bus.close()


class TwoModels(AgentModels):
    """Two models at different providers. The first one is down."""

    def __init__(self) -> None:
        self._down = ScriptedModel([ModelUnavailable("down")])
        self._up = CallbackModel(lambda _: [assistant_message("hi")])

    def candidates(self) -> list[Candidate]:
        first = Candidate("gpt-5", ("one", ""), self._down, "openai")
        return [first, Candidate("mistral/large", ("two", ""), self._up, "mistral")]


async def test_every_model_that_is_asked_has_a_span_with_its_name_and_its_provider() -> None:
    bus = MemoryBus()
    send(bus, "go")
    with recorded_spans() as spans:
        await work(bus, OpenAIAgentsRunner(Agent(name=AGENT, model=TwoModels())), spans)

        (turn,) = spans.of("turn")
        failed, answered = spans.one("chat gpt-5"), spans.one("chat large")
        assert [parent_of(chat) for chat in (failed, answered)] == [id_of(turn)] * 2
        assert [facts(chat)["gen_ai.provider.name"] for chat in (failed, answered)] == ["openai", "mistral"]
        assert [facts(chat)["gen_ai.request.model"] for chat in (failed, answered)] == ["gpt-5", "large"]
        assert failed.status.status_code is trace.StatusCode.ERROR
        assert facts(answered)["gen_ai.response.model"] == "mistral/large"
        assert "gen_ai.response.time_to_first_chunk" in facts(answered)
    bus.close()


async def test_sent_mail_carries_the_span_of_the_send() -> None:
    bus = MemoryBus()
    send(bus, "go")
    told = function_call("chat_send", {"recipient": "agent:Bob", "content": "hi"}, call_id="c1")
    with recorded_spans() as spans:
        await work(bus, OpenAIAgentsRunner(ToolCallScript(told).agent(function_tools.chat_send)), spans)

        sent, tool = spans.one("send"), spans.one("execute_tool chat_send")
        (mail,) = whole_log(bus, "chat:Bob")
        assert parent_of(sent) == id_of(tool)
        assert sent.kind is trace.SpanKind.PRODUCER
        assert facts(sent)["messaging.message.id"] == mail.payload["id"]
        assert str(mail.headers["traceparent"]).split("-")[2] == f"{id_of(sent):016x}"
    bus.close()


HALF_SENT = """
chat_send("agent:Bea", "with the result")
chat_send("agent:Cy", "at once", now=True)
try:
    run_python("chat_send('agent:Dee', 'lost')\\n1/0")
except Exception:
    pass
"""


@pytest.mark.parametrize(
    ("code", "lost"),
    [(HALF_SENT, {"agent:Dee"}), (HALF_SENT + "1/0", {"agent:Bea", "agent:Dee"})],
    ids=["success", "failure"],
)
async def test_only_messages_that_were_sent_are_counted_and_the_others_are_marked(code: str, lost: set[str]) -> None:
    bus, registry, sandbox = MemoryBus(), CollectorRegistry(), patient_sandbox()
    send(bus, "go")
    with recorded_spans() as spans:
        runner = OpenAIAgentsRunner(Blocks(sandbox, code).made)
        await work(bus, runner, spans, metrics=RunMetrics(registry))

        marks = {facts(span)["messaging.destination.name"]: facts(span).get("error.type") for span in spans.of("send")}
        assert marks == {name: "not_sent" if name in lost else None for name in ("agent:Bea", "agent:Cy", "agent:Dee")}
        assert registry.get_sample_value("magent2_run_sends_total") == 3 - len(lost)
    await sandbox.aclose()
    bus.close()


async def test_a_span_that_a_tool_makes_is_part_of_its_call() -> None:
    @function_tool
    async def measure() -> str:
        """Make a span of its own."""
        spans.provider.get_tracer("mine").start_span("inside").end()
        return "done"

    bus = MemoryBus()
    send(bus, "go")
    with recorded_spans() as spans:
        asked = ToolCallScript(function_call("measure", {}, call_id="c1"))
        await work(bus, OpenAIAgentsRunner(asked.agent(measure)), spans)

        assert parent_of(spans.one("inside")) == id_of(spans.one("execute_tool measure"))
    bus.close()


async def test_mail_carries_no_trace_when_traces_are_off() -> None:
    bus = MemoryBus()
    send(bus, "go")
    told = function_call("chat_send", {"recipient": "agent:Bob", "content": "hi"}, call_id="c1")
    (lane,) = bus.call(Claim(worker="w1", agents=(AGENT,), limit=1, lease_s=LEASE_S)).lanes

    await LaneRun(bus, lane, OpenAIAgentsRunner(ToolCallScript(told).agent(function_tools.chat_send))).work()

    records = [*whole_log(bus, "chat:Bob"), *whole_log(bus, "history:one")]
    assert records
    assert not any("traceparent" in record.headers for record in records)
    bus.close()


@pytest.mark.parametrize("text", ["hello", SECRET])
async def test_an_agent_without_tools_has_one_turn(text: str) -> None:
    bus = MemoryBus()
    send(bus, text)
    with recorded_spans() as spans:
        model = CallbackModel(lambda items: [assistant_message("hi")])
        await work(bus, OpenAIAgentsRunner(Agent(name=AGENT, model=model)), spans)

        assert spans.names == ["chat CallbackModel", "turn", f"invoke_agent {AGENT}"]
    bus.close()


def _caused() -> Any:
    from magent2.mail.delivery import SendOptions

    return SendOptions(trace=CAUSE)


async def _die_at_tool(bus: Engine, spans: Spans) -> None:
    """A worker dies when the result of its tool is to be recorded."""
    mortal = CrashingBus(bus, on="tool")
    working = asyncio.create_task(work(mortal, digging(("dig", "c1")), spans, "mortal"))
    await mortal.dead.wait()
    for _ in range(TURNS_OF_LOOP):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait({working})
    bus.call(Leave("mortal"))
