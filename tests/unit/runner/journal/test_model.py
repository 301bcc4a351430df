"""Models in a journalled run: their requests, the events of their responses, and what is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelRetryBackoffSettings,
    ModelRetrySettings,
    ModelSettings,
    ModelTracing,
    function_tool,
)
from agents.items import TResponseStreamEvent
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFileSearchToolCall,
    ResponseOutputItemDoneEvent,
)
from pydantic import BaseModel

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Compact
from magent2.errors import ModelError
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.model import build_response, stream_events
from magent2.runner.demo.script import ScriptedText
from magent2.runner.journal.compaction import RequestFitter
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.model import JournalModel, refuse_server_state
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.providers.provider import LoopProvider, candidates_of
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import (
    CallbackModel,
    CrashingBus,
    Items,
    answers_recorded,
    context_of,
    events_and_error,
    results_in,
    scripted,
    stream_answer,
    work,
    work_until_crash,
)
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.worker_fixture import AGENT, history, kinds, outputs, send, stream

# The arguments with which the SDK calls a model
REQUEST: Any = (None, "hi", ModelSettings(), [], None, [], ModelTracing.DISABLED)
NO_STATE: Any = {"previous_response_id": None, "conversation_id": None, "prompt": None}


def journal_model(model: Model, journal: Journal) -> JournalModel:
    candidates = candidates_of(LoopProvider(), model)
    return JournalModel(candidates, journal, AGENT, RequestFitter(journal, AGENT, candidates, LoopProvider()))


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


# --- events


async def test_tokens_belong_to_their_turn_and_join_to_its_text(bus: MemoryBus) -> None:
    send(bus, "go")

    await work(bus, scripted(stream_answer("one two three four")))

    *tokens, output = (event for event in stream(bus) if event["event"] in ("token", "output"))
    assert "".join(token["text"] for token in tokens) == output["text"] == "one two three four"
    assert [token["index"] for token in tokens] == list(range(4))
    assert len({token["id"] for token in tokens}) == 4
    assert {event["message_id"] for event in (*tokens, output)} == {f"{output['run_id']}/0"}
    assert (tokens[0]["attempt"], tokens[0]["agent"], tokens[0]["turn"]) == (1, AGENT, 0)


async def test_the_text_of_a_turn_with_tools_closes_its_tokens(bus: MemoryBus) -> None:
    send(bus, "go")

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        calls = [assistant_message("First I look."), function_call("look", {}, call_id="c1")]
        return [assistant_message("Done.")] if results_in(items) else calls

    @function_tool
    def look() -> str:
        """Look."""
        return "seen"

    await work(bus, Agent(name=AGENT, model=CallbackModel(say), tools=[look]))

    message, output = (event for event in stream(bus) if event["event"] in ("message", "output"))
    assert (message["text"], message["message_id"]) == ("First I look.", f"{output['run_id']}/0")
    assert (output["text"], output["message_id"]) == ("Done.", f"{output['run_id']}/1")
    assert bus.call(Compact("stream:one", 0)).dropped > 0
    assert "token" not in kinds(stream(bus))


async def test_usage_counts_all_turns_including_replayed_ones(bus: MemoryBus) -> None:
    send(bus, "go")
    replies = [Reply(calls=[Call("look")], usage=(7, 5)), Reply("done", usage=(10, 1))]

    @function_tool
    def look() -> str:
        """Look."""
        return "seen"

    with ModelServer(replies) as server:
        config = RunnerConfig(agent_name=AGENT, model="scripted", api_key="any", base_url=server.url)
        runner = OpenAIAgentsRunner(config=config)
        runner._agent.tools = [look]
        assert await work_until_crash(CrashingBus(bus, on="tool", after=True), runner)
        await work(bus, runner)
        await runner._provider.aclose()

    (output,) = (event for event in stream(bus) if event["event"] == "output")
    assert output["usage"] == {"requests": 2, "input_tokens": 17, "output_tokens": 6, "total_tokens": 23}
    assert len(server.requests) == 2


# --- turns


async def test_a_retry_of_the_sdk_is_the_same_turn(bus: MemoryBus) -> None:
    send(bus, "go")
    backoff = ModelRetryBackoffSettings(initial_delay=0, max_delay=0)
    retry = ModelRetrySettings(max_retries=2, policy=lambda context: True, backoff=backoff)
    steps = (ModelStep.raise_error(ConnectionError("lost")), stream_answer("hello"))

    await work(bus, scripted(*steps, model_settings=ModelSettings(retry=retry)))

    assert answers_recorded(bus) == [0]
    assert outputs(bus) == ["hello"]


async def test_the_sdk_does_not_retry_a_response_that_has_begun(bus: MemoryBus) -> None:
    """Its tokens are on the log. Only another attempt of the run may produce tokens again, with its own number."""
    send(bus, "go")
    backoff = ModelRetryBackoffSettings(initial_delay=0, max_delay=0)
    retry = ModelRetrySettings(max_retries=2, policy=lambda context: True, backoff=backoff)

    async def events(call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        for event in stream_events(build_response(ScriptedText("one two"), [{}])):
            if event.type == "response.output_text.delta":
                yield event
        raise ConnectionError("lost")

    model = ScriptedModel([ModelStep.stream(events), stream_answer("hello")])

    assert await work(bus, Agent(name=AGENT, model=model, model_settings=ModelSettings(retry=retry))) is Outcome.RETRIED

    assert len(model.calls) == 1


async def test_the_sdk_gets_only_the_first_token_and_the_complete_response(bus: MemoryBus) -> None:
    send(bus, "go")
    journal = Journal(context_of(bus))
    passed: list[str] = []

    async def call_model() -> None:
        scripted = ScriptedModel([stream_answer("one two three four")])
        model = journal_model(scripted, journal)
        passed.extend([event.type async for event in model.stream_response(*REQUEST, **NO_STATE)])

    texts = [event["text"] async for event in journal.stream(call_model) if isinstance(event, Mapping)]

    assert "".join(texts) == "one two three four"
    assert passed.count("response.output_text.delta") == 1
    assert passed[-1] == "response.completed"


class Number(BaseModel):
    n: int


async def test_a_response_that_was_not_the_last_is_on_the_log_before_the_next_model_call(bus: MemoryBus) -> None:
    """After a structured response without text, the SDK calls the model again, although no tool was called."""
    send(bus, "go")
    agent = scripted([], [assistant_message('{"n": 1}')], output_type=Number)

    await work(bus, agent)

    assert answers_recorded(bus) == [0, 1]
    assert outputs(bus) == ['{"n": 1}']


async def test_a_text_that_was_not_the_last_is_emitted_before_the_next_model_call(bus: MemoryBus) -> None:
    send(bus, "go")
    journal = Journal(context_of(bus))

    async def respond_and_continue() -> None:
        await journal.end_turn(build_response(ScriptedText("hello"), [{}]), AGENT)
        await journal.begin_turn()

    assert [event async for event in journal.stream(respond_and_continue)] == []

    (message,) = (event for event in stream(bus) if event["event"] == "message")
    assert (message["text"], message["message_id"], message["turn"]) == ("hello", "run-1/0", 0)
    assert answers_recorded(bus) == [0]


async def test_a_search_of_the_provider_is_in_the_history_with_its_run_agent_and_turn(bus: MemoryBus) -> None:
    send(bus, "where is it?")
    searched = ResponseFileSearchToolCall(
        id="fs-1", type="file_search_call", status="completed", queries=["where is it?"], results=None
    )
    response = build_response(ScriptedText("On page 3."), [{}])
    response.output = [searched, *response.output]

    async def events(call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)

    await work(bus, Agent(name=AGENT, model=ScriptedModel([ModelStep.stream(events)])))

    (answer,) = [record for record in history(bus) if "fs-1" in str(record)]
    assert (answer["agent"], answer["turn"]) == (AGENT, 0)
    assert answer["run"] == history(bus)[0]["run"]
    assert "where is it?" in str(answer)


async def test_a_response_whose_last_event_has_no_output_is_recorded_completely(bus: MemoryBus) -> None:
    send(bus, "go")
    whole = build_response(ScriptedText("hello"), [{}])

    async def events(call: ModelCall) -> AsyncIterator[TResponseStreamEvent]:
        item = whole.output[0]
        yield ResponseOutputItemDoneEvent(
            type="response.output_item.done", item=item, output_index=0, sequence_number=0
        )
        empty: Response = whole.model_copy(update={"output": []})
        yield ResponseCompletedEvent(type="response.completed", response=empty, sequence_number=1)

    await work(bus, scripted(ModelStep.stream(events)))

    (answer,) = (record for record in history(bus) if record["kind"] == "answer")
    assert answer["response"]["output"][0]["content"][0]["text"] == "hello"


async def test_a_response_that_is_not_streamed_is_journalled_too(bus: MemoryBus) -> None:
    send(bus, "go")
    context = context_of(bus)
    journal = Journal(context)
    model = ScriptedModel([[function_call("look", {}, call_id="c1")]])

    async def call_model() -> Any:
        journalled = journal_model(model, journal)
        return await journalled.get_response(*REQUEST, **NO_STATE)

    responses: list[Any] = []

    async def twice() -> None:
        responses.append(await call_model())
        journal.turn = 0  # the next call is a replay
        responses.append(await call_model())

    assert [event async for event in journal.stream(twice)] == []

    assert len(model.calls) == 1
    assert responses[0].output == responses[1].output
    assert answers_recorded(bus) == [0]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (ModelSettings(), {"previous_response_id": "resp-1"}),
        (ModelSettings(), {"conversation_id": "conv-1"}),
        (ModelSettings(extra_args={"previous_response_id": "resp-1"}), {}),
        (ModelSettings(extra_body={"conversation": "conv-1"}), {}),
    ],
)
def test_conversation_state_at_the_provider_is_refused(settings: ModelSettings, options: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="keeps the conversation at the provider"):
        refuse_server_state(settings, options)


# --- agents


async def test_the_given_agents_are_not_changed(bus: MemoryBus) -> None:
    send(bus, "go")

    @function_tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = scripted(stream_answer("hello"), tools=[look], handoffs=[Agent(name="Bea")])
    before = (agent.model, list(agent.tools), list(agent.handoffs), look.on_invoke_tool)
    with ModelServer([]) as server:  # the server of Bea's model, which has no name
        runner = OpenAIAgentsRunner(agent)
        runner._provider = LoopProvider("any", server.url)
        await work(bus, runner)

    assert outputs(bus) == ["hello"]
    assert (agent.model, agent.tools, agent.handoffs, look.on_invoke_tool) == before


async def test_an_agent_whose_model_is_unavailable_is_a_clear_error(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    send(bus, "go")

    _, error = await events_and_error(bus, OpenAIAgentsRunner(Agent(name=AGENT, model="some-model")))

    assert type(error) is ModelError
    assert "OPENAI_API_KEY" in str(error)
