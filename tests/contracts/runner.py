"""The conformance suite of the runner: one suite, every runner.

A test class of your runner says how to make one that behaves in a certain way:

    class TestMyRunner(RunnerContract):
        @pytest.fixture
        def maker(self) -> RunnerMaker:
            return MineMaker()

A model that says what it likes is made with `exact = False`. Its answers are then held against themselves: what must
be equal to a chosen text for the others must be there at all, and tokens join to the output all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent, ToolStepEvent
from magent2.runner.run_stream import QUEUE_MAX, THREAD_NAME
from tests.support.waiting import eventually

TEXTS = {
    "a word": "hello",
    "several": "one two  three",
    "outer spaces": "  \n hello \t\n",
    "other scripts": "héllo wörld 👩‍🚀 你好",
    "braces": '{"a": [1, 2]} {0} %s',
    "nothing": "",
    "more tokens than the bridge holds": " ".join(f"w{number}" for number in range(QUEUE_MAX * 4 + 76)),
}


class Runner(Protocol):
    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Any]: ...


class RunnerMaker:
    """How to come to runners. What a kind of runner cannot do it leaves out, and the tests of it are skipped."""

    exact = True  # whether a runner says the text that it was made for, and not what it likes

    def is_said(self, said: str, text: str) -> bool:
        """Whether a whole answer is what the runner for this text had to say."""
        return said == text if self.exact else said != ""

    def is_begun(self, said: str, text: str) -> bool:
        """Whether this is some of an answer, from its beginning."""
        return said != "" and (text.startswith(said) or not self.exact)

    def saying(self, text: str) -> Runner:
        """One that answers the text itself, with this text if it is exact."""
        raise NotImplementedError

    def failing(self, text: str) -> Runner:
        """One that streams some of the text, then fails; the next run says all of it."""
        return pytest.skip("this runner has nothing in it that could fail")

    def stuck(self, text: str) -> Runner:
        """One that streams some of the text, then waits for as long as it is left alone."""
        return pytest.skip("this runner has nothing to wait for")

    def calling(self, tool: str, text: str) -> Runner:
        """One that calls the tool with `{"n": 1}`, which answers "did 1", and then says the text."""
        return pytest.skip("this runner calls no tools")


def envelope(text: str, conversation: str = "conv") -> MessageEnvelope:
    return MessageEnvelope(conversation_id=conversation, sender="user:ann", recipient="agent:Dev", content=text)


def run_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def text_of(events: Iterable[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokenEvent))


def read_until_error(runner: Runner) -> tuple[list[Any], Exception | None]:
    """The events of a run, and the error that ended it."""
    seen: list[Any] = []
    try:
        for event in runner.stream_run(envelope("hi")):
            seen.append(event)  # noqa: PERF402  list() would lose what came before the error
    except Exception as error:  # noqa: BLE001  any error will do, and it is looked at
        return seen, error
    return seen, None


class RunnerContract:
    @pytest.fixture
    def maker(self) -> RunnerMaker:
        raise NotImplementedError("say how to make your runner: see the docstring of this module")

    @pytest.fixture(autouse=True)
    def no_thread_is_left(self) -> Iterator[None]:
        yield
        eventually(lambda: not run_threads())

    @pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
    def test_tokens_come_in_order_and_join_to_exactly_the_output(self, maker: RunnerMaker, text: str) -> None:
        *tokens, output = maker.saying(text).stream_run(envelope(text))

        assert all(isinstance(event, TokenEvent) for event in tokens)
        assert [event.index for event in tokens] == list(range(len(tokens)))
        assert isinstance(output, OutputEvent)
        assert text_of(tokens) == output.text
        assert maker.is_said(output.text, text)

    def test_every_event_names_the_conversation_and_has_an_id_of_its_own(self, maker: RunnerMaker) -> None:
        events = list(maker.saying("one two").stream_run(envelope("one two", "other")))

        assert {event.conversation_id for event in events} == {"other"}
        assert len({event.id for event in events}) == len(events)

    def test_events_survive_json(self, maker: RunnerMaker) -> None:
        for event in maker.saying("one two").stream_run(envelope("one two")):
            assert type(event).model_validate(event.model_dump(mode="json")) == event

    def test_nothing_happens_before_the_first_event_is_asked_for(self, maker: RunnerMaker) -> None:
        events = maker.saying("hello").stream_run(envelope("hello"))

        assert run_threads() == []
        assert maker.is_said(text_of(events), "hello")

    async def test_it_can_be_read_on_a_thread_that_has_a_loop(self, maker: RunnerMaker) -> None:
        *_, output = maker.saying("one two").stream_run(envelope("one two"))

        assert maker.is_said(output.text, "one two")

    def test_runs_side_by_side_do_not_mix(self, maker: RunnerMaker) -> None:
        runners = {text: maker.saying(text) for text in ("one two three", "four five six", "seven eight nine")}

        with ThreadPoolExecutor(len(runners)) as pool:
            found = pool.map(lambda text: list(runners[text].stream_run(envelope(text, text))), runners)

        for text, events in zip(runners, found, strict=True):
            assert {event.conversation_id for event in events} == {text}
            assert text_of(events) == events[-1].text
            assert maker.is_said(events[-1].text, text)

    def test_an_error_comes_after_the_events_before_it_and_there_is_no_output(self, maker: RunnerMaker) -> None:
        seen, error = read_until_error(maker.failing("one two three four"))

        assert error is not None
        assert maker.is_begun(text_of(seen), "one two three four")
        assert not any(isinstance(event, OutputEvent) for event in seen)

    def test_a_failed_run_does_not_spoil_the_next(self, maker: RunnerMaker) -> None:
        runner = maker.failing("one two three four")
        _, error = read_until_error(runner)

        *_, output = runner.stream_run(envelope("hi"))

        assert error is not None
        assert maker.is_said(output.text, "one two three four")

    def test_closing_early_ends_the_run_and_its_thread(self, maker: RunnerMaker) -> None:
        events = iter(maker.stuck("one two three four").stream_run(envelope("hi")))
        first = next(events)

        events.close()  # type: ignore[attr-defined]

        assert maker.is_begun(first.text, "one two three four")
        assert run_threads() == []

    def test_a_reader_that_is_dropped_ends_the_run_too(self, maker: RunnerMaker) -> None:
        events = iter(maker.stuck("one two three four").stream_run(envelope("hi")))
        next(events)

        del events

        assert run_threads() == []

    def test_a_tool_is_shown_when_it_is_called_and_when_it_has_answered(self, maker: RunnerMaker) -> None:
        events = list(maker.calling("work", "all done").stream_run(envelope("go")))

        start, end = (event for event in events if isinstance(event, ToolStepEvent))
        assert (start.name, start.args, start.status) == ("work", {"n": 1}, "start")
        assert (end.name, end.result_summary, end.status) == ("work", "did 1", "success")
        assert start.tool_call_id == end.tool_call_id
        assert events.index(end) < events.index(next(e for e in events if isinstance(e, TokenEvent)))
        assert maker.is_said(events[-1].text, "all done")
