"""The built-in tools: each with and without what it needs, on each kind of model."""

from __future__ import annotations

from typing import Any

import pytest
from agents import CodeInterpreterTool, FileSearchTool, HostedMCPTool, ImageGenerationTool, WebSearchTool

from magent2.errors import SettingsError, UnknownTool
from magent2.tools.builtins import BUILTINS, BuiltinTools, ModelKind

NEEDED: dict[str, dict[str, str]] = {
    "FileSearchTool": {"FILE_SEARCH_VECTOR_STORES": "vs_1, vs_2"},
    "WebSearchTool": {},
    "HostedMCPTool": {
        "HOSTED_MCP_URL": "https://mcp.example/api",
        "HOSTED_MCP_TOKEN": "not-a-secret",  # pragma: allowlist secret
        "HOSTED_MCP_TOOLS": "read,list",
    },
    "ImageGenerationTool": {"IMAGE_GENERATION_MODEL": "gpt-image-1"},
    "CodeInterpreterTool": {"CODE_INTERPRETER_MEMORY": "1g"},
}
# Tools that act on the worker's machine: the function that the model gets, and the variable of its implementation
IMPLEMENTED = {"ComputerTool": ("computer", "COMPUTER_TOOL"), "LocalShellTool": ("local_shell", "LOCAL_SHELL_TOOL")}
HERE = "tests.unit.tools.test_builtins:run_command"


def run_command(command: list[str]) -> str:
    """Run a command in a sandbox."""
    return f"ran {' '.join(command)}"


def reading(name: str, **values: str) -> BuiltinTools:
    return BuiltinTools.read({"BUILTIN_TOOLS_ENABLED": name, **values})


def test_there_are_eight_and_only_web_search_is_on() -> None:
    status = BuiltinTools.read({}).status("openai")

    assert len(status) == len(BUILTINS) == 8
    assert {entry["name"] for entry in status if entry["enabled"]} == {"FunctionTool", "WebSearchTool"}
    assert all(set(entry) == {"name", "enabled", "available", "missing", "reason"} for entry in status)


@pytest.mark.parametrize("name", NEEDED)
def test_with_its_settings_a_tool_is_available_and_can_be_built(name: str) -> None:
    tools = reading(name, **NEEDED[name])

    assert tools.status_of(name, "openai") == {
        "name": name,
        "enabled": True,
        "available": True,
        "missing": [],
        "reason": None,
    }
    assert type(tools.build(name, "openai")).__name__ == name


@pytest.mark.parametrize("name", [name for name in NEEDED if NEEDED[name]])
def test_without_its_settings_it_says_what_is_missing_and_is_left_out(name: str) -> None:
    tools = reading(name)
    status = tools.status_of(name, "openai")

    assert (status["enabled"], status["available"]) == (True, False)
    assert {text.partition("=")[0] for text in status["missing"]} == set(NEEDED[name])
    assert str(status["reason"]).startswith("not set up: ")
    assert tools.build(name, "openai") is None


@pytest.mark.parametrize("name", NEEDED)
def test_set_up_but_switched_off_is_told_apart(name: str) -> None:
    tools = BuiltinTools.read({"BUILTIN_TOOLS_ENABLED": "none", **NEEDED[name]})
    status = tools.status_of(name, "openai")

    assert (status["enabled"], status["available"]) == (False, True)
    assert status["reason"] == "not named in BUILTIN_TOOLS_ENABLED"
    assert tools.build(name, "openai") is None


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_a_tool_that_acts_on_this_machine_says_which_implementation_is_missing(name: str) -> None:
    variable = IMPLEMENTED[name][1]
    status = reading(name).status_of(name, "openai")
    broken = reading(name, **{variable: "nowhere_at_all:run"}).status_of(name, "openai")

    assert (status["enabled"], status["available"]) == (True, False)
    assert status["missing"] == [f"{variable}=module:function"]
    assert status["reason"] == f"not set up: {variable}=module:function"
    assert reading(name).implementation(name, "openai") is None
    assert (broken["available"], broken["missing"]) == (False, [])
    assert "No module named 'nowhere_at_all'" in str(broken["reason"])


@pytest.mark.parametrize("kind", ["openai", "compatible", "demo", "local"])
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_an_implementation_makes_it_a_function_that_never_runs_twice(name: str, kind: ModelKind) -> None:
    function, variable = IMPLEMENTED[name]
    tools = reading(name, **{variable: HERE})
    tool = tools.implementation(name, kind)

    assert tools.status_of(name, kind)["available"]
    assert tool is not None
    assert (tool.name, tool.repeat, tool.description) == (function, "never", "Run a command in a sandbox.")
    assert tools.build(name, kind) is None
    assert BuiltinTools.read({variable: HERE}).implementation(name, kind) is None  # not enabled


def test_only_the_tools_that_the_model_gets_are_given() -> None:
    tools = reading("WebSearchTool,FileSearchTool,LocalShellTool", LOCAL_SHELL_TOOL=HERE)
    listed = ("weather", "FunctionTool", "WebSearchTool", "FileSearchTool", "ComputerTool", "LocalShellTool", "a.b")

    assert tools.given(listed, (), "openai") == ["weather", "WebSearchTool", "LocalShellTool", "a.b"]
    assert tools.given(listed, (), "compatible") == ["weather", "LocalShellTool", "a.b"]
    assert tools.given(listed, ("WebSearchTool", "LocalShellTool"), "openai") == ["weather", "LocalShellTool", "a.b"]


@pytest.mark.parametrize("kind", ["compatible", "demo", "local", "echo"])
@pytest.mark.parametrize("name", NEEDED)
def test_a_model_that_cannot_take_a_tool_is_not_given_it(name: str, kind: ModelKind) -> None:
    tools = reading(name, **NEEDED[name])
    status = tools.status_of(name, kind)

    assert (status["enabled"], status["available"]) == (True, False)
    assert status["reason"]
    assert tools.build(name, kind) is None


@pytest.mark.parametrize("kind", ["openai", "compatible", "demo", "local", "echo"])
def test_custom_tools_are_always_there(kind: ModelKind) -> None:
    status = BuiltinTools.read({}).status_of("FunctionTool", kind)

    assert (status["enabled"], status["available"]) == (True, True)


# --- the duties of each tool


def built(name: str, **more: str) -> Any:
    return reading(name, **{**NEEDED[name], **more}).build(name, "openai")


def test_web_search_is_cheap_by_default_and_can_be_kept_to_some_sites() -> None:
    plain, kept = built("WebSearchTool"), built("WebSearchTool", WEB_SEARCH_DOMAINS="a.example, b.example")

    assert isinstance(plain, WebSearchTool)
    assert plain.search_context_size == "low"
    assert kept.filters.allowed_domains == ["a.example", "b.example"]


def test_a_context_size_that_is_none_is_told() -> None:
    status = reading("WebSearchTool", WEB_SEARCH_CONTEXT_SIZE="huge").status_of("WebSearchTool", "openai")

    assert status["missing"] == ["WEB_SEARCH_CONTEXT_SIZE=low|medium|high"]


def test_file_search_sees_only_the_stores_that_are_named() -> None:
    tool = built("FileSearchTool")

    assert isinstance(tool, FileSearchTool)
    assert (tool.vector_store_ids, tool.include_search_results) == (["vs_1", "vs_2"], False)


def test_hosted_mcp_wants_tls_a_token_and_a_list_of_tools() -> None:
    tool = built("HostedMCPTool")
    insecure = reading("HostedMCPTool", **{**NEEDED["HostedMCPTool"], "HOSTED_MCP_URL": "http://mcp.example"})

    assert isinstance(tool, HostedMCPTool)
    assert tool.tool_config["allowed_tools"] == ["read", "list"]
    assert insecure.status_of("HostedMCPTool", "openai")["missing"] == ["https in HOSTED_MCP_URL"]
    assert "not-a-secret" not in repr(insecure)


def test_pictures_are_small_and_moderated() -> None:
    tool = built("ImageGenerationTool")

    assert isinstance(tool, ImageGenerationTool)
    assert (tool.tool_config["quality"], tool.tool_config["moderation"]) == ("low", "auto")


def test_code_runs_with_limited_memory_and_without_a_network() -> None:
    tool = built("CodeInterpreterTool")

    assert isinstance(tool, CodeInterpreterTool)
    assert tool.tool_config["container"] == {
        "type": "auto",
        "memory_limit": "1g",
        "network_policy": {"type": "disabled"},
    }


# --- settings


@pytest.mark.parametrize(
    "variables",
    [
        {"BUILTIN_TOOLS_ENABLED": "WebSearch"},
        {"BUILTIN_TOOLS_SERVER": "azure"},
        {"BUILTIN_TOOLS_CALLS_MAX": "0"},
        {"BUILTIN_TOOLS_CALLS_MAX": "many"},
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(variables: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(variables))):
        BuiltinTools.read(variables)


def test_what_sits_behind_an_address() -> None:
    tools, told = BuiltinTools.read({}), BuiltinTools.read({"BUILTIN_TOOLS_SERVER": "openai"})

    assert tools.kind_of_server(None) == tools.kind_of_server("https://api.openai.com/v1") == "openai"
    assert tools.kind_of_server("http://127.0.0.1:11434/v1") == "compatible"
    assert told.kind_of_server("http://127.0.0.1:11434/v1") == "openai"


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(UnknownTool, match="unknown built-in tool 'ShellTool'"):
        BuiltinTools.read({}).status_of("ShellTool", "openai")
