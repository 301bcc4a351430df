"""Compaction of requests that are too long, through the journal and against a real HTTP model server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.tool import FunctionTool

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append
from magent2.models.address import usage_topic
from magent2.models.files import ATTACHMENTS
from magent2.models.run_options import RUN_OPTIONS
from magent2.runner.config import RunnerConfig
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.providers.provider import provider_of
from magent2.sessions.files import FileLimits, store_inline
from magent2.sessions.folds import NO_SUMMARY, SUMMARY_HEADING
from magent2.sessions.history import RunKey
from magent2.worker.lane_run import Outcome
from tests.support.audit import whole_log
from tests.support.files import PDF
from tests.support.journaled_runs import CrashingBus, results_in, work, work_until_crash
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.small_context import SmallContext, orphans_in
from tests.support.steerable_run import shown_steers, steer, work_steered
from tests.support.worker_fixture import AGENT, dead_letters, history, outputs, send, stream

WINDOW = 3_000  # tokens of the model
LIMIT = 2_000  # tokens of a request
LONG = "word " * 300  # about 375 tokens


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def runner_of(
    server: ModelServer, *tools: FunctionTool, context_max: int | None = LIMIT, **options: Any
) -> OpenAIAgentsRunner:
    config = RunnerConfig(api_key="any", base_url=server.url, api="responses")
    agent = Agent[Any](name=AGENT, model="small", tools=list(tools))
    runner = OpenAIAgentsRunner(agent, provider=provider_of(config), **options)
    runner.context_max = context_max
    return runner


async def converse(bus: MemoryBus, runner: OpenAIAgentsRunner, *questions: str) -> None:
    try:
        for question in questions:
            send(bus, question)
            assert await work(bus, runner) is Outcome.ANSWERED
    finally:
        await runner.leave_loop()


def say(text: str = "ok") -> Callable[[Sequence[Mapping[str, Any]]], Reply]:
    return lambda items: Reply(text)


def compactions(bus: MemoryBus) -> list[Mapping[str, Any]]:
    return [record for record in history(bus) if record["kind"] == "compaction"]


def first_text(items: Sequence[Mapping[str, Any]]) -> str:
    return str(items[0]["content"])


def questions(items: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(item["content"]) for item in items if item.get("role") == "user"]


async def test_a_long_conversation_goes_on_with_a_summary_of_its_beginning(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server), *(f"{number} {LONG}" for number in range(12)))

        last = server.requests[-1]["input"]

    assert (len(outputs(bus)), model.refused, model.unasked) == (12, 0, 0)
    assert first_text(last).startswith(SUMMARY_HEADING)
    assert questions(last)[-1].startswith("11 ")
    assert len(compactions(bus)) == len(model.summaries) >= 2
    assert max(model.sizes) <= LIMIT * 1.2


async def test_a_summary_has_the_summary_before_it(bus: MemoryBus) -> None:
    numbers = count(1)
    model = SmallContext(say(), WINDOW, summary=lambda text: Reply(f"the summary with number {next(numbers)}"))
    with ModelServer(model) as server:
        await converse(bus, runner_of(server), *(LONG for _ in range(12)))

    assert "number 1" not in model.summaries[0]
    assert "the summary with number 1" in model.summaries[1]


async def test_the_record_and_the_event_say_what_was_done(bus: MemoryBus) -> None:
    with ModelServer(SmallContext(say(), WINDOW)) as server:
        await converse(bus, runner_of(server), *(LONG for _ in range(7)))

    (made,) = compactions(bus)
    (event,) = (event for event in stream(bus) if event["event"] == "compacted")
    assert made["reason"] == "size"
    assert made["tokens_before"] > LIMIT
    assert made["tokens_after"] <= LIMIT / 2
    assert made["through"]["run"] in {record["run"] for record in history(bus) if record["kind"] == "start"}
    assert made["model"]
    assert made["usage"]["input_tokens"] > 0
    assert (event["summary"], event["tokens_before"]) == (made["summary"], made["tokens_before"])
    assert event["run_id"] == made["run"]


async def test_the_usage_of_a_run_has_that_of_its_summary(bus: MemoryBus) -> None:
    with ModelServer(SmallContext(say(), WINDOW)) as server:
        await converse(bus, runner_of(server), *(LONG for _ in range(7)))

    (made,) = compactions(bus)
    (output,) = (event for event in stream(bus) if event["event"] == "output" and event["run_id"] == made["run"])
    (answer,) = (record for record in history(bus) if record["kind"] == "answer" and record["run"] == made["run"])
    own = answer["response"]["usage"]["input_tokens"]
    assert output["usage"]["input_tokens"] == own + made["usage"]["input_tokens"]


def tool_loop(turns: int, result: str = LONG) -> tuple[FunctionTool, Callable[[Sequence[Mapping[str, Any]]], Reply]]:
    """A tool with long results, and a model that calls it so many times and then says `done`."""
    called = count()

    @function_tool
    def look() -> str:
        """Look."""
        return result

    def answer(items: Sequence[Mapping[str, Any]]) -> Reply:
        number = next(called)
        return Reply("done") if number >= turns else Reply("", calls=[Call("look", {}, id=f"call-{number}")])

    return look, answer


async def test_the_turns_of_a_long_run_are_summarised_too(bus: MemoryBus) -> None:
    look, answer = tool_loop(20)
    model = SmallContext(answer, WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, look), "look around twenty times")

        last = server.requests[-1]["input"]

    assert outputs(bus) == ["done"]
    assert (model.orphans, model.refused, model.unasked) == ([], 0, 0)
    assert questions(last)[1] == "look around twenty times"
    assert {made["through"]["run"] for made in compactions(bus)} == {compactions(bus)[0]["run"]}
    assert len(model.summaries) == len(compactions(bus)) >= 3


async def test_a_later_run_starts_behind_the_turns_that_were_summarised(bus: MemoryBus) -> None:
    look, answer = tool_loop(8)
    model = SmallContext(answer, WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, look), "look around", "and now?")

        last = server.requests[-1]["input"]

    assert first_text(last).startswith(SUMMARY_HEADING)
    assert questions(last)[1:] == ["look around", "and now?"]
    assert model.orphans == []
    assert 0 < len([item for item in last if item.get("type") == "function_call"]) < 8


async def crash_at_the_compaction(bus: MemoryBus, server: ModelServer, *, after: bool) -> int:
    """Converse until a worker has crashed right before or after its compaction. Return the number of messages."""
    for number in range(1, 12):
        send(bus, LONG)
        runner = runner_of(server)
        crashed = await work_until_crash(CrashingBus(bus, on="compaction", after=after), runner)
        await runner.leave_loop()
        if crashed:
            return number
    pytest.fail("there was no compaction")


@pytest.mark.parametrize("after", [False, True])
async def test_a_takeover_finds_the_compaction_or_makes_it(bus: MemoryBus, after: bool) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        messages = await crash_at_the_compaction(bus, server, after=after)
        assert len(compactions(bus)) == after
        runner = runner_of(server)

        assert await work(bus, runner) is Outcome.ANSWERED

        await runner.leave_loop()
    assert len(outputs(bus)) == messages
    assert (len(compactions(bus)), len(model.summaries)) == (1, 1 if after else 2)


async def test_a_request_that_the_model_refuses_is_compacted_and_tried_again(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, context_max=None), *(LONG for _ in range(12)))

    assert len(outputs(bus)) == 12
    assert model.refused >= 1
    assert {made["reason"] for made in compactions(bus)} == {"refused"}
    assert dead_letters(bus) == []


async def test_a_message_that_is_too_long_by_itself_is_shortened(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, context_max=None), "BEGIN " + LONG * 20 + " END")

        (text,) = questions(server.requests[-1]["input"])

    assert text.startswith("BEGIN ")
    assert text.endswith(" END")
    assert "left out" in text
    assert compactions(bus) == []


async def test_a_result_that_is_too_long_by_itself_is_shortened_before_the_message(bus: MemoryBus) -> None:
    look, answer = tool_loop(1, "result " * 4_000)
    model = SmallContext(answer, WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, look), "look around")

        items = server.requests[-1]["input"]

    assert questions(items) == ["look around"]
    assert "left out" in next(iter(results_in(items).values()))
    assert (model.orphans, model.refused) == ([], 0)


async def test_a_request_that_stays_too_long_is_a_dead_letter_that_says_so(bus: MemoryBus) -> None:
    with ModelServer(SmallContext(say(), window=20)) as server:
        send(bus, LONG)
        runner = runner_of(server)
        assert await work(bus, runner) is Outcome.BURIED
        await runner.leave_loop()

    assert dead_letters(bus)[0]["reason"].startswith("ContextTooLong")


async def test_without_a_summary_the_part_is_left_out_and_the_model_is_told(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW, summary=lambda text: Reply("no such model", status=404))
    with ModelServer(model) as server:
        await converse(bus, runner_of(server), *(LONG for _ in range(7)))

        last = server.requests[-1]["input"]

    (made,) = compactions(bus)
    assert "summary" not in made
    assert first_text(last) == NO_SUMMARY
    assert len(outputs(bus)) == 7


async def test_a_summary_model_that_is_down_is_replaced_by_that_of_the_agent(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server, ModelServer(lambda request: Reply("gone", status=404)) as other:
        provider = provider_of(RunnerConfig(api_key="any", base_url=other.url, api="responses"))
        runner = runner_of(server)
        runner.summary_model = provider.get_model("other")
        try:
            await converse(bus, runner, *(LONG for _ in range(7)))
        finally:
            await provider.aclose()

    (made,) = compactions(bus)
    assert other.requests
    assert made["summary"].startswith("Summary of")


async def test_a_chosen_model_makes_the_summary(bus: MemoryBus) -> None:
    with ModelServer(SmallContext(say(), WINDOW)) as server:
        runner = runner_of(server)
        runner.summary_model = "cheap"
        await converse(bus, runner, *(LONG for _ in range(7)))

        names = [request["model"] for request in server.requests]

    assert (names.count("small"), names.count("cheap")) == (7, len(compactions(bus)))


async def test_what_is_too_long_for_one_summary_is_summarised_in_parts(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, context_max=None), *(LONG for _ in range(6)))
        await converse(bus, runner_of(server, context_max=1_000), "and now?")

    (made,) = compactions(bus)
    assert len(model.summaries) >= 2
    assert all("The summary so far:" in text for text in model.summaries[1:])
    assert made["tokens_after"] <= 1_000


async def test_a_summary_is_no_longer_than_its_limit(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW, summary=lambda text: Reply("long " * 2_000))
    with ModelServer(model) as server:
        await converse(bus, runner_of(server), *(LONG for _ in range(12)))

    assert all(len(made["summary"]) < LIMIT for made in compactions(bus))
    assert len(outputs(bus)) == 12


async def test_the_limit_of_runs_summarises_what_it_cuts(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, history_max=4), *map(str, range(12)))

        last = server.requests[-1]["input"]

    assert first_text(last).startswith(SUMMARY_HEADING)
    assert len(questions(last)) <= 4 + 2
    assert {made["reason"] for made in compactions(bus)} == {"runs"}
    assert len(model.summaries) == len(compactions(bus)) <= 4
    assert all("history_left_out" not in event for event in stream(bus) if event["event"] == "output")


async def test_an_agent_without_memory_gets_no_summary(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, history_max=0), *map(str, range(4)))

        last = server.requests[-1]["input"]

    assert (questions(last), model.summaries) == (["3"], [])


def test_the_check_of_the_server_finds_orphans() -> None:
    call = {"type": "function_call", "call_id": "a"}
    result = {"type": "function_call_output", "call_id": "a"}

    assert orphans_in([call, result]) == []
    assert orphans_in([call]) == ["call a"]
    assert orphans_in([result, call]) == ["result a", "call a"]


# --- together with other features


async def test_the_ledger_of_the_user_has_every_summary_once(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server), *(LONG for _ in range(9)))

    spent = [record.payload for record in whole_log(bus, usage_topic("user")) if record.payload["kind"] == "spend"]
    assert len(spent) == model.answered + len(model.summaries) > 9


async def test_an_answer_that_is_asked_again_is_compacted_too(bus: MemoryBus) -> None:
    look, _ = tool_loop(0)
    numbers = count()

    def answer(items: Sequence[Mapping[str, Any]]) -> Reply:
        number = next(numbers)
        if number < 8:
            return Reply("", calls=[Call("look", {}, id=f"call-{number}")])
        return Reply("seven" if number == 8 else '{"total": 7}')

    model = SmallContext(answer, WINDOW)
    with ModelServer(model) as server:
        runner = runner_of(server, look)
        schema = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
        options = {RUN_OPTIONS: {"output_schema": {"name": "bill", "schema": schema}}}
        send(bus, "how much?", metadata=options)
        try:
            assert await work(bus, runner) is Outcome.ANSWERED
        finally:
            await runner.leave_loop()

    assert outputs(bus) == ['{"total": 7}']
    assert (model.orphans, model.refused) == ([], 0)
    assert len(compactions(bus)) == len(model.summaries) >= 1
    assert "does not match" in questions(server.requests[-1]["input"])[-1]


async def test_calls_of_a_client_and_their_outputs_are_cut_together(bus: MemoryBus) -> None:
    """A client of chat completions sends the whole conversation with each message."""
    items: list[dict[str, Any]] = []
    for number in range(12):
        items += [
            {"role": "user", "content": f"question {number}"},
            {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": LONG},
        ]
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        runner = runner_of(server)
        send(bus, "newest", metadata={RUN_OPTIONS: {"input": [*items, {"role": "user", "content": "newest"}]}})
        try:
            assert await work(bus, runner) is Outcome.ANSWERED
        finally:
            await runner.leave_loop()

    assert (model.orphans, model.refused, outputs(bus)) == ([], 0, ["ok"])
    assert questions(server.requests[-1]["input"])[-1] == "newest"


async def test_a_replaced_answer_is_in_no_later_summary(bus: MemoryBus) -> None:
    model = SmallContext(lambda items: Reply("the secret" if "one" in questions(items)[-1] else "ok"), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server), f"one {LONG}")
        (run,) = {record["run"] for record in history(bus)}
        bus.call(Append(records=(RunKey("one", run, AGENT).superseded("another"),)))
        await converse(bus, runner_of(server), *(f"two {LONG}" for _ in range(8)))

    assert model.summaries
    assert all("the secret" not in text and "one word" not in text for text in model.summaries)


async def test_a_steer_stays_in_the_request_after_its_turn_was_summarised(bus: MemoryBus) -> None:
    look, answer = tool_loop(10)
    model = SmallContext(answer, WINDOW)
    with ModelServer(model) as server:
        runner = runner_of(server, look)
        send(bus, "look around")
        steer(bus, "only the north side", recipient=f"agent:{AGENT}", id="steer-1")
        try:
            assert await work_steered(bus, runner) is Outcome.ANSWERED
        finally:
            await runner.leave_loop()

        last = server.requests[-1]["input"]

    assert [text for _, text in shown_steers(last)] == ["only the north side"]
    assert questions(last)[1] == "look around"
    assert (model.orphans, model.refused) == ([], 0)


async def test_many_short_runs_are_summarised_with_one_call(bus: MemoryBus) -> None:
    model = SmallContext(say(), WINDOW)
    with ModelServer(model) as server:
        await converse(bus, runner_of(server, history_max=30), *map(str, range(32)))

    (made,) = compactions(bus)
    assert (made["reason"], len(model.summaries)) == ("runs", 1)
    assert all(f"[user]: {number}\n" in model.summaries[0] for number in range(16))


async def test_no_text_is_shortened_because_of_an_attached_file(bus: MemoryBus) -> None:
    pdf = PDF + b"x" * 900_000  # a guess makes it 4,500 tokens
    file = await store_inline(Log(bus), FileLimits(), "user:ann", "one", pdf, "a.pdf")
    with ModelServer(lambda request: Reply("ok")) as server:
        runner = runner_of(server)
        send(bus, LONG, metadata={ATTACHMENTS: [file.model_dump()]})
        try:
            assert await work(bus, runner) is Outcome.ANSWERED
        finally:
            await runner.leave_loop()

        ((item,),) = [request["input"] for request in server.requests]

    assert [part["type"] for part in item["content"]] == ["input_text", "input_file"]
    assert item["content"][0]["text"] == LONG


async def test_the_context_of_a_known_model_is_its_limit(bus: MemoryBus) -> None:
    """The request is far over the context that is known of this model, so it is shortened before it is sent."""
    model = SmallContext(say(), window=10_000)
    with ModelServer(model) as server:
        runner = runner_of(server, context_max=None)
        runner._agent.model = "gpt-4"  # 8,192 tokens
        await converse(bus, runner, LONG * 40)

    assert (model.refused, outputs(bus)) == (0, ["ok"])
    assert max(model.sizes) <= 8_192
