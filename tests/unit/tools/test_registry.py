"""Tools by name: what they take, what they refuse, where they are found."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel, Field

from magent2.errors import ArgumentsError, InvalidInput, SettingsError, UnknownTool
from magent2.tools.definition import check_arguments
from magent2.tools.interface import RunFacts
from magent2.tools.registry import ToolRegistry, ToolSpec, load_tool, spec_of, tool

FACTS = cast(RunFacts, SimpleNamespace(conversation_id="one", agent="Ada", run_id="run-1"))


@tool
def book(day: date, seats: Annotated[int, Field(ge=1, description="How many.")] = 1) -> str:
    """Book a table.

    Not part of the description.
    """
    return f"{seats} on {day:%d %B}"


# --- the schema


def test_the_schema_comes_from_the_signature() -> None:
    assert book.definition().shown() == {
        "name": "book",
        "description": "Book a table.",
        "params_schema": {
            "type": "object",
            "properties": {
                "day": {"type": "string", "format": "date"},
                "seats": {"type": "integer", "minimum": 1, "default": 1, "description": "How many."},
            },
            "required": ["day"],
            "additionalProperties": False,
        },
    }


def test_the_facts_of_the_run_are_not_the_callers_to_fill() -> None:
    @tool
    def who(context: RunFacts) -> str:
        """Say who."""
        return context.agent

    assert who.params_schema["properties"] == {}
    assert asyncio.run(who.run({}, FACTS)) == "Ada"


def test_parameters_may_have_any_name() -> None:
    @tool
    def odd(json: str, copy: int, _private: bool, model_config: str) -> list[Any]:
        """Names that a model class has, too."""
        return [json, copy, _private, model_config]

    given = {"json": "a", "copy": 1, "_private": True, "model_config": "b"}
    assert asyncio.run(odd.run(given, FACTS)) == ["a", 1, True, "b"]


def test_a_schema_that_is_given_is_shown_and_checked_as_it_is() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    spec = ToolSpec("double", "Double it.", lambda **given: given["n"] * 2, schema)

    assert spec.params_schema == schema
    assert asyncio.run(spec.run({"n": 4}, FACTS)) == 8
    with pytest.raises(ArgumentsError, match="n: 'x' is not of type 'integer'"):
        asyncio.run(spec.run({"n": "x"}, FACTS))


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "object", "properties": 7}])
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="params_schema of tool 'x'"):
        ToolSpec("x", "X.", lambda: None, schema)


def test_a_schema_fetches_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}
    spec = ToolSpec("x", "X.", lambda **given: None, schema)

    with pytest.raises(ArgumentsError, match="cannot be checked"):
        check_arguments(spec.name, spec.params_schema, {"a": 1})


def test_a_function_that_cannot_be_described_is_refused_by_name() -> None:
    def loose(*things: int) -> None:
        """Takes what comes."""

    with pytest.raises(InvalidInput, match="loose: parameter 'things' cannot be passed by name"):
        spec_of(loose)


def test_a_tool_needs_words_and_a_name_that_models_take() -> None:
    with pytest.raises(InvalidInput, match="needs a description"):
        spec_of(lambda: None, name="x")
    with pytest.raises(InvalidInput, match="1 to 64 letters"):
        ToolSpec("two words", "X.", lambda: None)


# --- calls


def test_arguments_arrive_as_the_function_wants_them() -> None:
    assert asyncio.run(book.run({"day": "2026-05-04", "seats": 3}, FACTS)) == "3 on 04 May"


class Point(BaseModel):
    x: int
    y: int


def test_a_model_arrives_as_a_model() -> None:
    @tool
    def mirror(point: Point) -> int:
        """Mirror a point."""
        return -point.x

    assert asyncio.run(mirror.run({"point": {"x": 2, "y": 0}}, FACTS)) == -2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "'day' is a required property"),
        ({"day": "2026-05-04", "seats": 0}, "seats: 0 is less than the minimum of 1"),
        ({"day": "2026-05-04", "seats": "3"}, "seats: '3' is not of type 'integer'"),
        ({"day": "2026-05-04", "chairs": 1}, "'chairs' was unexpected"),
        ({"day": "tomorrow"}, "day: "),
        ([], r"\[\] is not of type 'object'"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(given: Any, why: str) -> None:
    with pytest.raises(ArgumentsError, match=f"the arguments do not fit tool 'book': .*{why}"):
        asyncio.run(book.run(given, FACTS))


def test_a_slow_tool_is_given_up() -> None:
    @tool(timeout_s=0.01)
    async def dawdle() -> None:
        """Takes for ever."""
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="dawdle took longer than"):
        asyncio.run(dawdle.run({}, FACTS))


def test_a_tool_is_still_a_function() -> None:
    assert book(date(2026, 5, 4)) == "1 on 04 May"


# --- the registry


def test_names_are_unique_and_unknown_ones_are_told_what_there_is() -> None:
    registry = ToolRegistry([book])

    with pytest.raises(InvalidInput, match="a tool 'book' is registered already"):
        registry.register(book)
    with pytest.raises(UnknownTool, match="unknown tool 'look'; known tools: book"):
        registry.get("look")
    with pytest.raises(UnknownTool):
        registry.check_arguments("look", {})
    with pytest.raises(ArgumentsError):
        registry.check_arguments("book", {})
    registry.check_arguments("book", {"day": "2026-05-04"})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module of tools beside a file of agents."""
    (tmp_path / "house_tools.py").write_text(
        "from magent2.tools.registry import tool\n"
        "@tool(name='inner')\ndef decorated(n: int) -> int:\n    '''Add one.'''\n    return n + 1\n"
        "def plain(text: str) -> str:\n    '''Shout.'''\n    return text.upper()\n"
        "number = 7\n"
    )
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("house_tools", None)


def test_tools_are_found_by_their_path(folder: Path) -> None:
    registry = ToolRegistry()
    registry.follow({"add": "house_tools:decorated", "shout": "house_tools:plain"}, folder)

    assert registry.names() == ("add", "shout")
    assert asyncio.run(registry.get("add").run({"n": 1}, FACTS)).typed_result == 2
    assert registry.get("shout").description == "Shout."


def test_the_registry_follows_another_file(folder: Path) -> None:
    registry = ToolRegistry([book])
    registry.follow({"add": "house_tools:decorated"}, folder)

    registry.follow({"add": "house_tools:plain", "shout": "house_tools:plain"}, folder)
    assert registry.get("add").description == "Shout."
    registry.follow({}, folder)

    assert registry.names() == ("book",)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("house_tools:missing", "AttributeError"),
        ("no_such_module_here:x", "ModuleNotFoundError"),
        ("house_tools:number", "is a int, not a function"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(folder: Path, path: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"tool 'x': .*{why}"):
        load_tool("x", path, folder)
