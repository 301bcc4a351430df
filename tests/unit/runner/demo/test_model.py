from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from hypothesis import given
from hypothesis import strategies as st

from magent2.models.envelope import MessageEnvelope, ToolStepEvent
from magent2.runner.demo.model import DemoModel, script
from magent2.runner.demo.script import Line, ScriptedCall, ScriptedText, next_line
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.tools.default_tools import product_search, weather

TOOLS = ("add", "now", "chat_send", "weather", "product_search", "echo_context")
HANDOFFS = {"Front Desk": "transfer_to_front_desk"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('use add {"a": 1, "b": 2}', (ScriptedCall("add", {"a": 1, "b": 2}),)),
        ("  use now ", (ScriptedCall("now"),)),
        ('use add {\n "a": 1\n}', (ScriptedCall("add", {"a": 1}),)),
        ('use add {"a": 1}\nuse now', (ScriptedCall("add", {"a": 1}), ScriptedCall("now"))),
        ("What time is it?", (ScriptedCall("now"),)),
        ("what's the time", (ScriptedCall("now"),)),
        (
            "tell agent:Bob good morning",
            (
                ScriptedCall(
                    "chat_send", {"recipient": "agent:Bob", "content": "good morning", "conversation_id": None}
                ),
            ),
        ),
        (
            "Talk to front desk.",
            (ScriptedCall("transfer_to_front_desk", {"reason": "The user asked for this agent."}),),
        ),
        ("weather in Oslo", (ScriptedCall("weather", {"city": "Oslo"}),)),
        ("What is the weather like in São Paulo?", (ScriptedCall("weather", {"city": "São Paulo"}),)),
        ("search for red shoes", (ScriptedCall("product_search", {"query": "red shoes"}),)),
        ("echo context", (ScriptedCall("echo_context"),)),
        ("echo context this too", (ScriptedCall("echo_context", {"text": "this too"}),)),
    ],
)
def test_the_script_knows_these_lines(text: str, line: Line) -> None:
    assert script(text, TOOLS, HANDOFFS) == line


@pytest.mark.parametrize(
    "text",
    [
        "use juggle {}",
        "use add {not json}",
        "use add please",
        "use now\nand then rest",
        "talk to nobody",
        "tell me a story",
        "what time is it in Rome?",
        "",
        " \n ",
    ],
)
def test_any_other_message_is_echoed(text: str) -> None:
    assert script(text, TOOLS, HANDOFFS) == ScriptedText(text)


@given(st.text())
def test_without_tools_and_other_agents_everything_is_echoed(text: str) -> None:
    assert script(text, (), {}) == ScriptedText(text)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent() -> Agent[Any]:
    desk = Agent(name="Desk", model=DemoModel())
    return Agent(name="Dev", model=DemoModel(), tools=[add], handoffs=[desk])


def run(text: str, conversation: str = "c") -> list[Any]:
    message = MessageEnvelope(conversation_id=conversation, sender="user:ann", recipient="agent:Dev", content=text)
    return list(OpenAIAgentsRunner(agent()).stream_run(message))


def test_it_streams_word_by_word_and_counts() -> None:
    *tokens, output = run("one two three")

    assert [event.text for event in tokens] == ["one ", "two ", "three"]
    assert output.usage["output_tokens"] == 3


def test_it_calls_tools_in_one_turn_and_reports_their_results() -> None:
    events = run('use add {"a": 1, "b": 2}\nuse add {"a": 3, "b": 4}')

    assert [event.status for event in events[:4]] == ["start", "start", "success", "success"]
    assert events[-1].text == "3\n7"


def test_it_hands_over() -> None:
    assert run("talk to desk")[-1].text == "Desk here. What can I do for you?"


def test_the_same_conversation_gets_the_same_answer_under_the_same_ids() -> None:
    first, second = (run('use add {"a": 1, "b": 2}') for _ in range(2))

    assert [event.tool_call_id for event in first[:2]] == [event.tool_call_id for event in second[:2]]


def test_a_call_made_again_in_one_conversation_has_an_id_of_its_own() -> None:
    runner = OpenAIAgentsRunner(agent())
    message = MessageEnvelope(
        conversation_id="c", sender="u", recipient="agent:Dev", content='use add {"a": 1, "b": 2}'
    )

    (first, *_), (second, *_) = (list(runner.stream_run(message)) for _ in range(2))

    assert isinstance(first, ToolStepEvent)
    assert isinstance(second, ToolStepEvent)
    assert first.tool_call_id != second.tool_call_id


async def test_without_streaming_it_answers_the_same() -> None:
    result = await Runner.run(agent(), "one two three", run_config=RunConfig(tracing_disabled=True))

    assert result.final_output == "one two three"
    assert result.context_wrapper.usage.output_tokens == 3


def test_results_of_example_tools_become_sentences_and_others_are_repeated() -> None:
    def reported(result: dict[str, Any]) -> str:
        line = next_line([{"type": "function_call_output", "output": json.dumps(result)}], TOOLS, {})
        assert isinstance(line, ScriptedText)
        return line.text

    assert reported(weather("Oslo")).startswith("In Oslo it is ")
    assert "- **Reading lamp, brass**, 49.00 €" in reported(product_search("a lamp")).splitlines()
    assert reported(product_search("submarine")).startswith("I found nothing (")
    assert reported({"sum": 3}) == '{"sum": 3}'
