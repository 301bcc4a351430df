"""Runs of a team on servers of other providers, over real HTTP: chat completions, Anthropic's messages, fall-back."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.roster.spec import AgentSpec, Provider, Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.select import select_team
from magent2.runner.team.runner import TeamRunner
from magent2.tools.builtins import BuiltinTools
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import CrashingBus
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.team import mail, roster, work, work_until_crash
from tests.support.worker_fixture import dead_letters, errors, history, outputs, run_worker, stream, until

DESK = AgentSpec("desk", instructions="You are the desk.", tools=("weather",))
WEATHER = Call("weather", {"city": "Paris"})
TWO_TURNS = (Reply(calls=[WEATHER]), Reply("Sunny in Paris."))


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@asynccontextmanager
async def team(
    agent: AgentSpec, providers: Mapping[str, Provider] | None = None, **variables: str
) -> AsyncIterator[TeamRunner]:
    """The team of one agent, with these variables of the environment."""
    house = Roster({"house": replace(roster(agent).scenarios["house"])}, default="house", providers=providers or {})
    runner = select_team(house, config=RunnerConfig.read(variables), builtins=BuiltinTools())
    yield runner
    await runner.aclose()


def answers(bus: MemoryBus) -> list[Mapping[str, Any]]:
    return [record["response"] for record in history(bus) if record["kind"] == "answer"]


def output(bus: MemoryBus) -> Mapping[str, Any]:
    return next(event for event in stream(bus) if event.get("event") == "output")


# --- one server, without a key of OpenAI


async def test_a_server_with_chat_completions_is_found_out_and_remembered(bus: MemoryBus) -> None:
    with ModelServer([*TWO_TURNS, Reply("Again.")], apis=["chat"]) as server:
        async with team(DESK, OPENAI_BASE_URL=server.url, AGENT_MODEL="llama") as runner:
            mail(bus, "weather?")
            assert await work(bus, runner) is Outcome.ANSWERED
            mail(bus, "and now?")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert outputs(bus) == ["Sunny in Paris.", "Again."]
    assert server.not_found == ["/v1/responses"]
    first, second, _ = server.requests
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["tools"][0]["function"]["name"] == "weather"
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "tool"]
    assert output(bus)["usage"]["input_tokens"] == 14
    assert output(bus)["model"] == "llama"


async def test_the_api_can_be_named(bus: MemoryBus) -> None:
    with ModelServer([Reply("Hi.")], apis=["chat"]) as server:
        async with team(DESK, OPENAI_BASE_URL=server.url, OPENAI_API="chat") as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert (outputs(bus), server.not_found) == (["Hi."], [])


async def test_an_unknown_model_is_an_error_that_names_the_next_step(bus: MemoryBus) -> None:
    with ModelServer([Reply(status=404)], apis=["chat"]) as server:
        async with team(DESK, OPENAI_BASE_URL=server.url) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.BURIED

    assert "check the model's name" in str(dead_letters(bus, "desk"))


async def test_an_agent_has_a_server_a_key_and_settings_of_its_own(bus: MemoryBus) -> None:
    with ModelServer([Reply("Hi.")], apis=["chat"]) as server:
        desk = replace(
            DESK,
            model="qwen",
            base_url=server.url,
            api_key_env="QWEN_KEY",
            api="chat",
            model_settings={
                "temperature": 0.5,
                "max_tokens": 99,
                "reasoning_effort": "low",
                "extra_body": {"top_k": 4},
            },
        )
        async with team(desk, QWEN_KEY="its own", OPENAI_API_KEY="not this one") as runner:  # pragma: allowlist secret
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.ANSWERED

    (request,), (headers,) = server.requests, server.headers
    assert headers["authorization"] == "Bearer its own"
    assert (request["temperature"], request["max_tokens"], request["top_k"]) == (0.5, 99, 4)
    assert request["reasoning_effort"] == "low"


async def test_the_key_of_the_default_provider_is_not_sent_to_the_server_of_an_agent(bus: MemoryBus) -> None:
    with ModelServer([Reply("Hi.")]) as server:
        desk = replace(DESK, base_url=server.url)
        async with team(desk, OPENAI_API_KEY="secret of another") as runner:  # pragma: allowlist secret
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert "secret" not in str(server.headers)


async def test_settings_reach_the_responses_api(bus: MemoryBus) -> None:
    with ModelServer([Reply("Hi.")]) as server:
        desk = replace(DESK, model_settings={"top_p": 0.3, "max_tokens": 50, "reasoning_effort": "high"})
        async with team(desk, OPENAI_BASE_URL=server.url) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.ANSWERED

    (request,) = server.requests
    assert (request["top_p"], request["max_output_tokens"], request["reasoning"]) == (0.3, 50, {"effort": "high"})


# --- any-llm and LiteLLM


async def test_messages_of_anthropic_are_streamed_with_tools(bus: MemoryBus) -> None:
    with ModelServer([Reply("Let me see. ", [WEATHER]), Reply("Sunny in Paris.")], apis=["anthropic"]) as server:
        desk = replace(DESK, model="anthropic/claude-test", base_url=server.root, model_settings={"temperature": 0.1})
        async with team(desk, ANTHROPIC_API_KEY="of anthropic") as runner:  # pragma: allowlist secret
            mail(bus, "weather?")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert outputs(bus) == ["Sunny in Paris."]
    first, second = server.requests
    assert (first["model"], first["system"], first["temperature"]) == ("claude-test", "You are the desk.", 0.1)
    assert first["tools"][0]["name"] == "weather"
    assert "tool_result" in str(second["messages"][-1])
    assert server.headers[0]["x-api-key"] == "of anthropic"
    assert [one["text"] for one in stream(bus) if one.get("event") == "token"][-1] == "Paris."
    assert output(bus)["usage"]["output_tokens"] == 10
    assert output(bus)["model"] == "anthropic/claude-test"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, Outcome.RETRIED), (529, Outcome.RETRIED), (401, Outcome.BURIED), (400, Outcome.BURIED)],
)
async def test_errors_of_anthropic_are_told_apart(bus: MemoryBus, status: int, outcome: Outcome) -> None:
    reply = Reply(status=status, retry_after="30", ask_again=status in (429, 529))
    with ModelServer([reply, reply], apis=["anthropic"]) as server:
        desk = replace(DESK, model="anthropic/claude-test", base_url=server.root)
        async with team(desk) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is outcome

    assert len(server.requests) == 1
    if status == 429:
        assert errors(bus)[-1]["retry_in_s"] >= 30


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_openrouter_is_called_through_any_llm(bus: MemoryBus, api: str) -> None:
    """Without `api`, any-llm uses the Responses API of providers that have it; with it, our own client is used."""
    with ModelServer([*TWO_TURNS], apis=[api]) as server:
        table = Provider("openrouter", server.url, api="chat" if api == "chat" else None)
        async with team(
            replace(DESK, model="openrouter/meta/llama"),
            {"openrouter": table},
            OPENROUTER_API_KEY="or",  # pragma: allowlist secret
        ) as runner:
            mail(bus, "weather?")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert outputs(bus) == ["Sunny in Paris."]
    assert [request["model"] for request in server.requests] == ["meta/llama"] * 2
    assert server.headers[0]["authorization"] == "Bearer or"


@pytest.mark.soak  # its import takes many seconds
async def test_litellm_is_another_way(bus: MemoryBus) -> None:
    with ModelServer([*TWO_TURNS], apis=["anthropic"]) as server:
        desk = replace(DESK, model="litellm/anthropic/claude-test", base_url=server.root)
        async with team(desk, ANTHROPIC_API_KEY="of anthropic") as runner:  # pragma: allowlist secret
            mail(bus, "weather?")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert outputs(bus) == ["Sunny in Paris."]


# --- several models


def two(first: ModelServer, second: ModelServer) -> Mapping[str, Provider]:
    return {"one": Provider("one", first.url), "two": Provider("two", second.url, api="chat")}


BOTH = replace(DESK, models=("one/big", "two/small"))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=503),
        Reply(status=429, retry_after="30"),
        Reply(status=401),
        Reply(status=404),
        Reply(refusal="I will not."),
        Reply("lost", end_after=0),
    ],
)
async def test_the_next_model_answers_if_one_is_down_or_refuses(bus: MemoryBus, reply: Reply) -> None:
    with ModelServer([reply]) as first, ModelServer([Reply("From the second.")], apis=["chat"]) as second:
        async with team(BOTH, two(first, second)) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.ANSWERED

    assert outputs(bus) == ["From the second."]
    assert [answer["model"] for answer in answers(bus)] == ["two/small"]
    assert output(bus)["model"] == "two/small"
    assert second.requests[0]["model"] == "small"


async def test_a_model_that_breaks_off_in_its_answer_is_tried_again_without_doubled_text(bus: MemoryBus) -> None:
    replies = [Reply("one two three", break_after=2), Reply("four five")]
    with ModelServer(replies) as first, ModelServer([], apis=["chat"]) as second:
        async with team(BOTH, two(first, second)) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.RETRIED

    assert second.requests == []


async def test_if_all_models_are_down_the_run_is_tried_again(bus: MemoryBus) -> None:
    with ModelServer([Reply(status=401)]) as first, ModelServer([Reply(status=503)], apis=["chat"]) as second:
        async with team(BOTH, two(first, second)) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.RETRIED


async def test_if_all_models_refuse_the_first_refusal_is_reported(bus: MemoryBus) -> None:
    with ModelServer([Reply(status=401)]) as first, ModelServer([Reply(status=400)], apis=["chat"]) as second:
        async with team(BOTH, two(first, second)) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.BURIED

    assert "status 401" in str(dead_letters(bus, "desk"))


async def test_a_takeover_replays_the_answer_of_the_second_model(bus: MemoryBus) -> None:
    first_replies, second_replies = [Reply(status=503)], [Reply(calls=[WEATHER])]
    with ModelServer(first_replies) as first, ModelServer(second_replies, apis=["chat"]) as second:
        async with team(BOTH, two(first, second)) as runner:
            mail(bus, "weather?")
            assert await work_until_crash(CrashingBus(bus, on="tool"), runner)
    with ModelServer([Reply("Sunny.")]) as first, ModelServer([], apis=["chat"]) as second:
        async with team(BOTH, two(first, second)) as runner:
            assert await work(bus, runner) is Outcome.ANSWERED

    assert [answer["model"] for answer in answers(bus)] == ["two/small", "one/big"]
    assert (outputs(bus), output(bus)["model"]) == (["Sunny."], "one/big")


# --- answers that are not complete

HALF = "This is half of an ans"
CUT_CALL = Call("weather", '{"ci', status="incomplete")
APIS = ["responses", "chat", "anthropic", pytest.param("litellm", marks=pytest.mark.soak)]


async def answer_of(bus: MemoryBus, api: str, reply: Reply) -> Outcome | None:
    """What comes of a message to a model with this API that answers once."""
    names = {"anthropic": "anthropic/claude-test", "litellm": "litellm/openai/gpt-test"}
    with ModelServer([reply], apis=["chat" if api == "litellm" else api]) as server:
        address = server.root if api == "anthropic" else server.url
        async with team(replace(DESK, model=names.get(api, "some-model"), base_url=address)) as runner:
            mail(bus, "hello")
            outcome = await work(bus, runner)
    assert len(server.requests) == 1
    return outcome


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(HALF, cut_off=True), HALF),
        (Reply(cut_off=True), ""),
        (Reply(HALF, [CUT_CALL], cut_off=True), HALF),
    ],
    ids=["text", "nothing", "call"],
)
async def test_an_answer_that_is_cut_off_ends_its_run_with_the_reason(
    bus: MemoryBus, api: str, reply: Reply, text: str
) -> None:
    assert await answer_of(bus, api, reply) is Outcome.ANSWERED

    assert (output(bus)["text"], output(bus)["incomplete_reason"]) == (text, "max_output_tokens")
    assert [event for event in stream(bus) if event.get("event") == "tool_step"] == []


@pytest.mark.parametrize("api", [api for api in APIS if api != "anthropic"])  # its filter is always a refusal
async def test_an_answer_that_a_filter_breaks_off_ends_its_run_with_the_reason(bus: MemoryBus, api: str) -> None:
    assert await answer_of(bus, api, Reply(HALF, filtered=True)) is Outcome.ANSWERED

    assert (output(bus)["text"], output(bus)["incomplete_reason"]) == (HALF, "content_filter")


@pytest.mark.parametrize("api", APIS)
async def test_an_answer_that_a_filter_withholds_is_a_refusal(bus: MemoryBus, api: str) -> None:
    assert await answer_of(bus, api, Reply(filtered=True)) is Outcome.BURIED

    assert "ModelRefused" in str(dead_letters(bus, "desk"))


@pytest.mark.parametrize("api", APIS)
async def test_no_library_of_a_provider_makes_retries_of_its_own(bus: MemoryBus, api: str) -> None:
    # The client of OpenAI's APIs does, but not if the provider asks for a delay.
    assert await answer_of(bus, api, Reply(status=503, ask_again=True, retry_after="9")) is Outcome.RETRIED


# --- models that hang


@pytest.mark.parametrize("api", ["responses", "chat", "anthropic"])
@pytest.mark.parametrize("first_word", [False, True])
async def test_a_model_that_sends_nothing_counts_as_down(bus: MemoryBus, api: str, first_word: bool) -> None:
    never = threading.Event()
    hanging = Reply("One two.", gate=never) if first_word else Reply("One two.", silent=never)
    with ModelServer([hanging], apis=[api]) as server:
        model = "anthropic/claude-test" if api == "anthropic" else "some-model"
        address = server.root if api == "anthropic" else server.url
        desk = replace(DESK, model=model, base_url=address, model_timeout_s=0.5)
        async with team(desk) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.RETRIED
        never.set()

    assert "it sent nothing for 0.5 s" in errors(bus)[-1]["message"]
    assert len(server.requests) <= 1  # on a busy machine, the server may not have read it by then


async def test_the_next_model_is_asked_if_one_hangs(bus: MemoryBus) -> None:
    never = threading.Event()
    with ModelServer([Reply(silent=never)]) as first, ModelServer([Reply("Here.")], apis=["chat"]) as second:
        tables = {"one": Provider("one", first.url, timeout_s=0.5), "two": Provider("two", second.url, api="chat")}
        async with team(BOTH, tables) as runner:
            mail(bus, "hello")
            assert await work(bus, runner) is Outcome.ANSWERED
        never.set()

    assert (outputs(bus), output(bus)["model"]) == (["Here."], "two/small")


# --- delays that a provider asks for


async def test_a_conversation_whose_provider_asks_for_a_delay_holds_no_slot(bus: MemoryBus) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        if "slow" in str(request["messages"]):
            return Reply(status=429, retry_after="45", ask_again=True)
        return Reply("Quick.")

    with ModelServer(answer, apis=["chat"]) as server:
        async with team(DESK, OPENAI_BASE_URL=server.url, OPENAI_API="chat") as runner:
            mail(bus, "slow", conversation="first")
            async with run_worker(bus, runner, "desk", concurrency=1):
                await until(lambda: bool(errors(bus, "first")))
                mail(bus, "quick", conversation="second")
                await until(lambda: outputs(bus, "second") == ["Quick."])

    assert len(server.requests) == 2
    assert errors(bus, "first")[-1]["retry_in_s"] >= 45


# --- what is wrong at the start


async def test_a_missing_key_is_an_error_at_the_start_that_names_the_variable() -> None:
    with pytest.raises(SettingsError, match="agent 'desk': model 'anthropic/claude-test' needs ANTHROPIC_API_KEY"):
        async with team(replace(DESK, model="anthropic/claude-test")):
            pass


async def test_a_team_without_any_provider_echoes() -> None:
    async with team(DESK) as runner:
        assert runner.kind == "echo"
