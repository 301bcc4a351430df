"""Every runner against the runner suite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from agents import Agent, function_tool
from agents.items import TResponseStreamEvent
from agents.testing import ModelCall, ModelStep, ScriptedModel, function_call

from magent2.errors import ModelError, TransientError
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.model import DemoModel, build_response, stream_events
from magent2.runner.demo.script import ScriptedText
from magent2.runner.echo import EchoRunner
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from tests.contracts.runner import Runner, RunnerContract, RunnerMaker, envelope, text_of
from tests.support.model_server import Call, ModelServer, Reply


@function_tool
def work(n: int) -> str:
    """Do a piece of work."""
    return f"did {n}"


class EchoMaker(RunnerMaker):
    def saying(self, text: str) -> Runner:
        return EchoRunner()


class TestEcho(RunnerContract):
    @pytest.fixture
    def maker(self) -> RunnerMaker:
        return EchoMaker()


def step(text: str, stop_after: int | None = None, how: str = "") -> ModelStep:
    """A scripted answer, word by word, that can fail or wait after so many events."""

    async def events(call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        for number, event in enumerate(stream_events(build_response(ScriptedText(text), [{}]))):
            await asyncio.sleep(0)  # as a socket would: after an error the SDK drops what nobody has read yet
            if number == stop_after and how == "fail":
                raise LookupError("scripted failure")
            if number == stop_after and how == "wait":
                await asyncio.Event().wait()
            yield event

    return ModelStep.stream(events)


def scripted(*steps: Any) -> Runner:
    return OpenAIAgentsRunner(Agent(name="Dev", model=ScriptedModel(steps), tools=[work]))


class ScriptedMaker(RunnerMaker):
    def saying(self, text: str) -> Runner:
        return scripted(step(text))

    def failing(self, text: str) -> Runner:
        return scripted(step(text, stop_after=4, how="fail"), step(text))

    def stuck(self, text: str) -> Runner:
        return scripted(step(text, stop_after=4, how="wait"))

    def calling(self, tool: str, text: str) -> Runner:
        return scripted([function_call(tool, {"n": 1}, call_id="c1")], step(text))


class TestSdkOnAScriptedModel(RunnerContract):
    @pytest.fixture
    def maker(self) -> RunnerMaker:
        return ScriptedMaker()


class DemoMaker(RunnerMaker):
    def saying(self, text: str) -> Runner:
        return OpenAIAgentsRunner(Agent(name="Dev", model=DemoModel()))


class TestSdkOnTheDemoModel(RunnerContract):
    @pytest.fixture
    def maker(self) -> RunnerMaker:
        return DemoMaker()


class HttpMaker(RunnerMaker):
    """A server per runner; all of them end with the test."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.servers: list[ModelServer] = []

    def serve(self, *replies: Reply, tools: bool = False) -> Runner:
        server = ModelServer(replies)
        self.servers.append(server.__enter__())
        config = RunnerConfig(agent_name="Dev", model="scripted", api_key="any", base_url=server.url)
        runner = OpenAIAgentsRunner(config=config)
        if tools:
            runner._agent.tools = [work]
        return runner

    def close(self) -> None:
        self.gate.set()
        for server in self.servers:
            server.__exit__(None, None, None)

    def saying(self, text: str) -> Runner:
        return self.serve(Reply(text))

    def failing(self, text: str) -> Runner:
        return self.serve(Reply(text, break_after=2), Reply(text))

    def stuck(self, text: str) -> Runner:
        return self.serve(Reply(text, gate=self.gate))

    def calling(self, tool: str, text: str) -> Runner:
        return self.serve(Reply(calls=[Call(tool, {"n": 1})]), Reply(text), tools=True)


class TestSdkOverHttp(RunnerContract):
    @pytest.fixture
    def maker(self) -> Iterator[HttpMaker]:
        made = HttpMaker()
        yield made
        made.close()

    def test_one_run_after_the_other_reaches_the_server(self, maker: HttpMaker) -> None:
        """Each run has a loop of its own; a connection that the last one left open must not be used again."""
        runner = maker.serve(*(Reply(f"answer {number}") for number in range(4)))

        outputs = [list(runner.stream_run(envelope(f"question {number}")))[-1].text for number in range(4)]

        assert outputs == [f"answer {number}" for number in range(4)]
        assert len(maker.servers[0].requests) == 4

    def test_the_model_sees_the_conversation_so_far_but_no_failed_run(self, maker: HttpMaker) -> None:
        runner = maker.serve(Reply("first answer"), Reply("never ends", break_after=1), Reply("second answer"))
        list(runner.stream_run(envelope("first")))
        with pytest.raises(TransientError):
            list(runner.stream_run(envelope("second")))

        list(runner.stream_run(envelope("second")))

        said = [item["content"] for item in maker.servers[0].requests[-1]["input"] if item.get("role") == "user"]
        assert said == ["first", "second"]

    def test_usage_is_what_the_server_counted(self, maker: HttpMaker) -> None:
        *_, output = maker.serve(Reply("hello", usage=(7, 5))).stream_run(envelope("hi"))

        assert output.usage == {"requests": 1, "input_tokens": 7, "output_tokens": 5, "total_tokens": 12}

    @pytest.mark.parametrize(
        "reply",
        [
            Reply("one two three", break_after=1),
            Reply("one two three", end_after=1),
            Reply("one two three", fail_after=1),
            Reply(status=429),
            Reply(status=500),
        ],
        ids=["cut off", "ends without completing", "reports a failure", "too many requests", "server error"],
    )
    def test_what_may_go_better_next_time_is_transient(self, maker: HttpMaker, reply: Reply) -> None:
        with pytest.raises(TransientError, match="the model did not answer"):
            list(maker.serve(reply).stream_run(envelope("hi")))

    def test_a_bad_request_is_not_transient(self, maker: HttpMaker) -> None:
        with pytest.raises(ModelError, match="check the model's name"):
            list(maker.serve(Reply("no such model", status=400)).stream_run(envelope("hi")))

    def test_a_tool_that_fails_is_shown_and_the_run_goes_on(self, maker: HttpMaker) -> None:
        runner = maker.serve(Reply(calls=[Call("work", {"n": "many"})]), Reply("sorry"), tools=True)

        events = list(runner.stream_run(envelope("go")))

        assert [event.status for event in events if event.event == "tool_step"] == ["start", "error"]
        assert events[-1].text == "sorry"

    def test_a_tool_that_does_not_exist_is_an_answer_to_the_model(self, maker: HttpMaker) -> None:
        runner = maker.serve(Reply(calls=[Call("juggle")]), Reply("I cannot"))

        *_, output = runner.stream_run(envelope("go"))

        assert output.text == "I cannot"
        assert maker.servers[0].requests[-1]["input"][-1]["type"] == "function_call_output"

    def test_closing_early_hangs_up_on_the_model(self, maker: HttpMaker) -> None:
        text = "word " * 500
        events = iter(maker.stuck(text).stream_run(envelope("hi")))
        assert text_of([next(events)]) == "word "

        events.close()  # type: ignore[attr-defined]
        maker.gate.set()

        assert maker.servers[0].hung_up.wait(10)
