from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magent2.errors import SettingsError
from magent2.runner.build import build_agent
from magent2.runner.config import INSTRUCTIONS_MAX_BYTES, RunnerConfig
from magent2.runner.providers.catalogue import ModelCatalogue
from magent2.sandbox.monty import LoopSandbox
from magent2.tools.default_tools import known_tools


def test_an_empty_environment_is_an_assistant_without_a_key() -> None:
    config = RunnerConfig.read({})

    assert config == RunnerConfig(agent_name="assistant")
    assert (config.api_key, config.model, config.instructions, config.tools) == (None, None, None, ())


def test_every_variable_is_read_and_trimmed() -> None:
    config = RunnerConfig.read(
        {
            "OPENAI_API_KEY": " key ",
            "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
            "AGENT_NAME": "Dev",
            "AGENT_MODEL": "small",
            "AGENT_INSTRUCTIONS": "Be kind.",
            "AGENT_TOOLS": " chat_send, ,chat_send,",
            "AGENT_HISTORY_MAX": " 7 ",
            "AGENT_MAX_TURNS": "3",
            "AGENT_CONTEXT_MAX": "9000",
            "AGENT_SUMMARY_MODEL": "cheap",
        }
    )

    assert config == RunnerConfig(
        "Dev",
        "small",
        "Be kind.",
        ("chat_send",),
        "key",
        "http://127.0.0.1:1/v1",
        history_max=7,
        max_turns=3,
        context_max=9000,
        summary_model="cheap",
    )


def test_without_variables_the_conversation_has_no_limit_of_its_own() -> None:
    config = RunnerConfig.read({})

    assert (config.history_max, config.context_max, config.summary_model) == (None, None, None)


@pytest.mark.parametrize("text", ["999", "-1", "many", "1.5", "100000001"])
def test_a_context_that_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"AGENT_CONTEXT_MAX .* use a number from 1000 to 100000000"):
        RunnerConfig.read({"AGENT_CONTEXT_MAX": text})


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_NAME", "FromProcess")

    assert RunnerConfig.read().agent_name == "FromProcess"


def test_the_key_does_not_print() -> None:
    config = RunnerConfig.read({"OPENAI_API_KEY": "hunter2", "OPENAI_BASE_URL": "http://u:hunter2@host"})

    assert "hunter2" not in f"{config!r} {config}"


def test_instructions_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "instructions.md"
    file.write_text("Be brief.\nBe kind.\n")

    assert RunnerConfig.read({"AGENT_INSTRUCTIONS_FILE": str(file)}).instructions == "Be brief.\nBe kind."


def test_both_kinds_of_instructions_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="AGENT_INSTRUCTIONS and AGENT_INSTRUCTIONS_FILE are both set"):
        RunnerConfig.read({"AGENT_INSTRUCTIONS": "Be kind.", "AGENT_INSTRUCTIONS_FILE": str(tmp_path)})


def bad_file(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "file"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
    elif kind == "huge":
        path.write_bytes(b"a" * (INSTRUCTIONS_MAX_BYTES + 1))
    return path


@pytest.mark.parametrize(
    ("kind", "why"),
    [("missing", "No such file"), ("folder", "directory"), ("binary", "not UTF-8"), ("huge", "over 1048576 bytes")],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path: Path, kind: str, why: str) -> None:
    path = bad_file(tmp_path, kind)

    with pytest.raises(SettingsError, match=why) as refusal:
        RunnerConfig.read({"AGENT_INSTRUCTIONS_FILE": str(path)})

    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_tool_is_one_clear_line_that_lists_the_known() -> None:
    with pytest.raises(SettingsError) as refusal:
        RunnerConfig.read({"AGENT_TOOLS": "chat_send,juggle,dance"})

    said = str(refusal.value)
    assert said.startswith("unknown tools in AGENT_TOOLS: 'juggle', 'dance'; known tools: cancel_reminder, ")
    assert set(said.partition("known tools: ")[2].split(", ")) == known_tools()
    assert "\n" not in said


def test_every_tool_that_is_there_can_be_named_and_reaches_the_agent() -> None:
    config = RunnerConfig.read({"AGENT_TOOLS": "weather, chat_send, WebSearchTool"})

    on_openai = [tool.name for tool in build_agent(config, LoopSandbox()).tools]
    elsewhere = [
        tool.name for tool in build_agent(replace(config, base_url="http://127.0.0.1:1/v1"), LoopSandbox()).tools
    ]

    assert on_openai == ["weather", "chat_send", "web_search"]
    assert elsewhere == ["weather", "chat_send"]


@pytest.mark.parametrize("url", ["http://[::1", "127.0.0.1:11434/v1", "file:///secret", "http://", "secret"])
def test_an_address_that_is_no_url_is_one_clear_line_that_does_not_repeat_it(url: str) -> None:
    for read in (RunnerConfig.read, lambda variables: ModelCatalogue(variables=variables)):
        with pytest.raises(SettingsError, match="OPENAI_BASE_URL must start with http://") as refusal:
            read({"OPENAI_BASE_URL": url})
        assert "secret" not in str(refusal.value)


def test_a_name_that_cannot_be_a_mailbox_is_refused() -> None:
    with pytest.raises(SettingsError, match="AGENT_NAME"):
        RunnerConfig.read({"AGENT_NAME": "two\nlines"})


@pytest.mark.parametrize("text", ["-1", "many", "1.5", "100001"])
def test_a_history_that_is_no_number_of_runs_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="AGENT_HISTORY_MAX"):
        RunnerConfig.read({"AGENT_HISTORY_MAX": text})


@pytest.mark.parametrize("text", ["0", "-1", "many", "1001", "²"])
def test_a_number_of_turns_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="AGENT_MAX_TURNS"):
        RunnerConfig.read({"AGENT_MAX_TURNS": text})
