"""Seed 001: the runner on the SDK, with the SDK's `Runner` replaced by a synthetic one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.responses import ResponseTextDeltaEvent

from magent2.errors import InvalidInput
from magent2.models.envelope import MessageEnvelope, OutputEvent, TokenEvent, ToolStepEvent
from magent2.runner import openai_agents_runner as module
from magent2.runner.config import RunnerConfig
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner


class FakeResultStreaming:
    def __init__(self, events: Sequence[Any], **attributes: Any) -> None:
        self._events = events
        self.__dict__.update(attributes)

    async def stream_events(self) -> AsyncIterator[Any]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event


class FakeSDKRunner:
    """As narrow as the SDK was when the seed was written: input and session, nothing else."""

    def __init__(self, result: FakeResultStreaming) -> None:
        self.result = result
        self.sessions: list[Any] = []
        self.inputs: list[str] = []

    def run_streamed(self, agent: Any, input: str, session: Any = None) -> FakeResultStreaming:  # noqa: A002  the SDK's
        self.inputs.append(input)
        self.sessions.append(session)
        return self.result


def delta(text: str) -> dict[str, Any]:
    return {"type": "raw_response_event", "data": {"type": "response.output_text.delta", "delta": text}}


def typed_delta(text: str) -> SimpleNamespace:
    data = ResponseTextDeltaEvent(
        type="response.output_text.delta",
        delta=text,
        item_id="m",
        output_index=0,
        content_index=0,
        sequence_number=0,
        logprobs=[],
    )
    return SimpleNamespace(type="raw_response_event", data=data)


def envelope(text: str = "hi", conversation: str = "conv") -> MessageEnvelope:
    return MessageEnvelope(conversation_id=conversation, sender="user:ann", recipient="agent:Dev", content=text)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSDKRunner:
    runner = FakeSDKRunner(FakeResultStreaming([delta("Hel"), typed_delta("lo")]))
    monkeypatch.setattr(module, "SDKRunner", runner)
    return runner


def test_dicts_and_objects_become_the_three_kinds_of_events_in_order(fake: FakeSDKRunner) -> None:
    call = {"name": "search", "arguments": '{"query": "tea"}', "call_id": "c1"}
    fake.result = FakeResultStreaming(
        [
            {"type": "agent_updated_stream_event"},
            delta("Let me "),
            SimpleNamespace(type="run_item_stream_event", name="tool_called", item=SimpleNamespace(raw_item=call)),
            {"type": "run_item_stream_event", "data": {"call_id": "c1", "output": "three kinds"}},
            {"type": "something_new", "data": {"delta": "not text"}},
            typed_delta("see."),
        ],
        final_output="Let me see.",
    )

    events = list(OpenAIAgentsRunner(SimpleNamespace(name="Dev")).stream_run(envelope()))

    assert [event.conversation_id for event in events] == ["conv"] * 5
    first, start, end, second, output = events
    assert isinstance(first, TokenEvent)
    assert (first.text, first.index) == ("Let me ", 0)
    assert isinstance(start, ToolStepEvent)
    assert (start.name, start.args, start.status, start.tool_call_id) == ("search", {"query": "tea"}, "start", "c1")
    assert isinstance(end, ToolStepEvent)
    assert (end.name, end.result_summary, end.status, end.tool_call_id) == ("search", "three kinds", "success", "c1")
    assert isinstance(second, TokenEvent)
    assert (second.text, second.index) == ("see.", 1)
    assert isinstance(output, OutputEvent)
    assert output.text == "Let me see."


def test_without_a_final_output_the_tokens_are_joined(fake: FakeSDKRunner) -> None:
    *_, output = OpenAIAgentsRunner(SimpleNamespace()).stream_run(envelope())

    assert isinstance(output, OutputEvent)
    assert (output.text, output.usage) == ("Hello", None)


def test_usage_is_a_small_dict_on_the_output(fake: FakeSDKRunner) -> None:
    usage = SimpleNamespace(requests=1, input_tokens=3, output_tokens=2, total_tokens=5, details=object())
    fake.result = FakeResultStreaming([delta("Hi")], context_wrapper=SimpleNamespace(usage=usage))

    *_, output = OpenAIAgentsRunner(SimpleNamespace()).stream_run(envelope())

    assert isinstance(output, OutputEvent)
    assert output.usage == {"requests": 1, "input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


def test_a_release_that_has_to_be_asked_for_its_final_output_is_asked(fake: FakeSDKRunner) -> None:
    async def get_final_output() -> str:
        return "asked for"

    fake.result = FakeResultStreaming([delta("Hi")], get_final_output=get_final_output)

    *_, output = OpenAIAgentsRunner(SimpleNamespace()).stream_run(envelope())

    assert isinstance(output, OutputEvent)
    assert output.text == "asked for"


def test_an_error_in_the_stream_is_raised_after_the_events_before_it(fake: FakeSDKRunner) -> None:
    fake.result = FakeResultStreaming([delta("Hel"), LookupError("gone")])
    events = OpenAIAgentsRunner(SimpleNamespace()).stream_run(envelope())

    assert next(events).text == "Hel"  # type: ignore[union-attr]
    with pytest.raises(LookupError, match="gone"):
        next(events)


def test_a_run_that_failed_after_its_last_event_is_no_clean_end(fake: FakeSDKRunner) -> None:
    fake.result = FakeResultStreaming([delta("Hel")], run_loop_exception=LookupError("late"))

    with pytest.raises(LookupError, match="late"):
        list(OpenAIAgentsRunner(SimpleNamespace()).stream_run(envelope()))


def test_a_run_that_waits_for_approval_is_no_clean_end(fake: FakeSDKRunner) -> None:
    fake.result = FakeResultStreaming([], interruptions=[SimpleNamespace(name="launch")])

    with pytest.raises(InvalidInput, match="launch"):
        list(OpenAIAgentsRunner(SimpleNamespace()).stream_run(envelope()))


def test_runs_of_one_conversation_share_a_session(fake: FakeSDKRunner) -> None:
    runner = OpenAIAgentsRunner(SimpleNamespace())

    for conversation in ("one", "two", "one"):
        list(runner.stream_run(envelope(conversation=conversation)))

    assert len(runner._sessions) == 2
    assert fake.sessions[0] is fake.sessions[2]
    assert fake.sessions[0] is not fake.sessions[1]
    assert [session.session_id for session in fake.sessions] == ["one", "two", "one"]


def test_the_session_that_was_not_used_for_longest_is_forgotten(fake: FakeSDKRunner) -> None:
    runner = OpenAIAgentsRunner(SimpleNamespace(), session_limit=2)

    for conversation in ("one", "two", "one", "three"):
        list(runner.stream_run(envelope(conversation=conversation)))

    assert list(runner._sessions) == ["one", "three"]


def test_256_sessions_are_kept_unless_told_otherwise(fake: FakeSDKRunner) -> None:
    runner = OpenAIAgentsRunner(SimpleNamespace())

    for number in range(300):
        runner._get_session(str(number))

    assert len(runner._sessions) == 256


def test_an_empty_message_is_an_empty_input(fake: FakeSDKRunner) -> None:
    message = MessageEnvelope(conversation_id="c", sender="user:ann", recipient="agent:Dev")

    list(OpenAIAgentsRunner(SimpleNamespace()).stream_run(message))

    assert fake.inputs == [""]


def test_it_takes_an_agent_or_a_config_and_not_both() -> None:
    with pytest.raises(ValueError, match="either an agent or a config"):
        OpenAIAgentsRunner()
    with pytest.raises(ValueError, match="either an agent or a config"):
        OpenAIAgentsRunner(SimpleNamespace(), config=RunnerConfig())


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="session_limit"):
        OpenAIAgentsRunner(SimpleNamespace(), session_limit=0)
