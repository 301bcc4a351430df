"""The small local model against the runner suite: a real model, which says what it likes."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from magent2.errors import ModelError, SettingsError, TransientError
from magent2.runner.config import RunnerConfig
from magent2.runner.local import ANSWER_MAX_TOKENS, CONTEXT_TOKENS, MODEL_NAME, find_weights, local_server
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.run_stream import QUEUE_MAX
from magent2.runner.select import select_runner
from tests.contracts.runner import TEXTS, Runner, RunnerContract, RunnerMaker, envelope, run_threads, text_of
from tests.support.proxy import ModelProxy

pytestmark = pytest.mark.soak

CONFIG = RunnerConfig(agent_name="Dev", instructions="Answer in one short sentence.")
TOO_LONG = TEXTS["more tokens than the bridge holds"]
ENDLESS = "Count from 1 to 300, one number after the other."  # it goes on for as long as it may


class LocalMaker(RunnerMaker):
    """Runners on the one server of this process. What comes between them and it is a proxy, never a change of it."""

    exact = False

    def __init__(self) -> None:
        self.proxies: list[ModelProxy] = []

    def saying(self, text: str) -> Runner:
        if text == TOO_LONG:
            pytest.skip(f"this text alone is more than the {CONTEXT_TOKENS} tokens that the model can be shown")
        return select_runner("local", CONFIG)

    def failing(self, text: str) -> Runner:
        return self.behind(after_tokens=2)

    def stuck(self, text: str) -> Runner:
        return self.behind(after_tokens=1, hold=True)

    def calling(self, tool: str, text: str) -> Runner:
        pytest.skip("this model has no sense for tools: what it is told about them has no place in its prompt")

    def behind(self, after_tokens: int, hold: bool = False) -> Runner:
        """A runner whose first answer is broken off, or held back, after so many tokens."""
        server = local_server()
        proxy = ModelProxy(urlsplit(server.url).port or 0, after_tokens, hold)
        self.proxies.append(proxy.__enter__())
        config = RunnerConfig("Dev", MODEL_NAME, CONFIG.instructions, api_key=server.api_key, base_url=proxy.url)
        return OpenAIAgentsRunner(config=config)

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.__exit__(None, None, None)


class TestSdkOnTheLocalModel(RunnerContract):
    @pytest.fixture
    def maker(self) -> Iterator[LocalMaker]:
        try:
            find_weights()
        except SettingsError as missing:
            pytest.skip(str(missing))
        made = LocalMaker()
        yield made
        made.close()

    def test_more_tokens_than_the_bridge_holds_all_reach_a_reader_that_comes_late(self, maker: LocalMaker) -> None:
        events = iter(maker.saying(ENDLESS).stream_run(envelope(ENDLESS)))
        first = next(events)
        list(maker.saying("hi").stream_run(envelope("hi")))  # one answer at a time: the first has been given by now

        *tokens, output = [first, *events]

        assert len(tokens) > QUEUE_MAX
        assert [token.index for token in tokens] == list(range(len(tokens)))
        assert text_of(tokens) == output.text

    def test_usage_is_what_the_server_counted(self, maker: LocalMaker) -> None:
        *_, output = maker.saying(ENDLESS).stream_run(envelope(ENDLESS))

        assert output.usage["requests"] == 1
        assert output.usage["output_tokens"] == ANSWER_MAX_TOKENS
        assert output.usage["total_tokens"] == output.usage["input_tokens"] + ANSWER_MAX_TOKENS

    def test_the_model_sees_the_conversation_so_far_but_no_failed_run(self, maker: LocalMaker) -> None:
        *_, fresh = maker.saying("hi").stream_run(envelope("hi"))
        runner = maker.behind(after_tokens=2)
        with pytest.raises(TransientError, match="the model did not answer"):
            list(runner.stream_run(envelope("hi")))

        *_, again = runner.stream_run(envelope("hi"))
        *_, second = runner.stream_run(envelope("hi"))

        assert again.usage["input_tokens"] == fresh.usage["input_tokens"] < second.usage["input_tokens"]

    def test_a_question_that_is_too_long_is_a_clear_error_and_spoils_nothing(self, maker: LocalMaker) -> None:
        runner: Runner = select_runner("local", CONFIG)

        with pytest.raises(ModelError, match=f"exceeds the available context size .{CONTEXT_TOKENS} tokens"):
            list(runner.stream_run(envelope(TOO_LONG)))
        *_, output = runner.stream_run(envelope("hi"))

        assert maker.is_said(output.text, "hi")

    def test_closing_early_hangs_up_and_the_model_is_free_for_the_next(self, maker: LocalMaker) -> None:
        events = iter(maker.behind(after_tokens=1, hold=True).stream_run(envelope(ENDLESS)))
        next(events)

        events.close()  # type: ignore[attr-defined]

        assert maker.proxies[0].hung_up.wait(10)
        *_, output = maker.saying("hi").stream_run(envelope("hi"))
        assert maker.is_said(output.text, "hi")
        assert run_threads() == []
