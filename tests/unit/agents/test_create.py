"""The parts of a created agent."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from agents import FunctionTool, Model, ModelSettings, WebSearchTool, function_tool
from agents.testing import ScriptedModel

from magent2.agents import AgentRuntime, create_agent
from magent2.agents.injection import BusModel
from magent2.context import AgentContext, BusMessage
from magent2.errors import InvalidInput
from magent2.runner.demo.model import DemoModel
from magent2.tools.registry import tool


def model_of(runtime: AgentRuntime) -> str | Model:
    assert isinstance(runtime.agent.model, BusModel)
    return runtime.agent.model.wrapped


def look(place: str) -> str:
    """Look at a place."""
    return place


def test_a_model_has_a_name_and_needs_no_key_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    runtime = create_agent("openai:gpt-4o", instructions="Be brief.", name="coder", ctx=AgentContext(env={"a": 1}))

    agent = runtime.agent
    assert (model_of(runtime), agent.instructions, agent.name) == ("gpt-4o", "Be brief.", "coder")
    assert runtime.ctx.env == {"a": 1}
    assert runtime.ctx.agent_id == "main"


def test_a_slash_in_a_name_is_part_of_it() -> None:
    assert model_of(create_agent("openai:meta/llama-3")) == "openai/meta/llama-3"


def test_demo_and_model_objects_are_models() -> None:
    scripted = ScriptedModel([])

    assert isinstance(model_of(create_agent("demo")), DemoModel)
    assert model_of(create_agent(scripted)) is scripted


@pytest.mark.parametrize("model", ["", "gpt-4o", "openai:", "openai: ", "other:x", 7, None])
def test_an_unknown_model_is_refused_with_the_known_ones(model: Any) -> None:
    with pytest.raises(InvalidInput, match="'openai:NAME', 'PROVIDER/NAME', 'demo', 'local', or a model object"):
        create_agent(model)


def test_tools_are_functions_tools_of_the_sdk_or_of_the_registry() -> None:
    made = create_agent("demo", tools=[look, function_tool(look, name_override="gaze"), tool(look), WebSearchTool()])

    kinds = [type(found) for found in made.agent.tools]
    assert [found.name for found in made.agent.tools] == ["look", "gaze", "look", "web_search"]
    assert kinds == [FunctionTool, FunctionTool, FunctionTool, WebSearchTool]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [7]}, "a tool must be a function"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"name": ""}, "agent name"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        create_agent("demo", **options)


def test_settings_are_the_models_own_unless_given() -> None:
    assert create_agent("demo", model_settings=ModelSettings(temperature=0.1)).agent.model_settings.temperature == 0.1
    assert create_agent("openai:gpt-5").agent.model_settings.reasoning is not None


def test_an_agent_has_mail_from_the_start() -> None:
    runtime = create_agent("demo")

    runtime.ctx.send_message(BusMessage(content="early", source="user", target="main"))

    assert [message.content for message in runtime.ctx.consume_messages()] == ["early"]


def test_importing_the_package_does_not_import_the_sdk() -> None:
    code = "import sys, magent2.agents; print(*{'agents', 'openai', 'jinja2'} & sys.modules.keys())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
