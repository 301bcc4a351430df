"""Every name that the seeds fix is where the table says, and looks as the seed says."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache, reduce, singledispatch
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

from magent2.bus.memory import MemoryBus
from magent2.gateway.app import create_app
from magent2.models.schemas import CONTRACT
from magent2.roster.agents_file import default_roster
from magent2.tools.builtins import BUILTINS, BuiltinTools
from magent2.tools.default_tools import standard_tools
from tests.acceptance import seed_names as names
from tests.support.source import parse_module

ROOT = Path(__file__).parents[2]
ROWS = list(names.rows())
VARIABLES = sorted({row.name for row in ROWS if isinstance(row.check, names.Variable)})
REASON_MIN_CHARS = 20
FILE_VALUE = re.compile(r"\{file: (.*)\}")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that the table names is set."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_name_of_a_seed_is_kept(row: names.Row, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if isinstance(row.check, names.Variable):
        check_variable(row.name, row.check, monkeypatch, tmp_path)
    elif isinstance(row.check, names.Returns):
        check_returns(row.check, monkeypatch)
    else:
        check(row.check, row.name)


def test_the_table_covers_every_seed_and_names_nothing_twice() -> None:
    assert list(names.TABLE) == ["000", "001", "002", "003", "004", "D3", "D10", "D14"]
    assert len({row.id for row in ROWS}) == len(ROWS) >= 190


# --- what a row says ---------------------------------------------------------------------------------------------


@singledispatch
def check(wanted: Any, name: str) -> None:
    raise NotImplementedError(type(wanted).__name__)


@check.register
def _(wanted: names.Module, name: str) -> None:
    assert import_module(wanted.home).__name__ == wanted.home


@check.register
def _(wanted: names.Class, name: str) -> None:
    found = at(wanted.home)
    if wanted.base is None:
        assert inspect.isclass(found)
    elif inspect.isclass(found):
        assert at(wanted.base) in found.__mro__
    else:
        assert isinstance(found, at(wanted.base))


@check.register
def _(wanted: names.Function, name: str) -> None:
    here = list(inspect.signature(at(wanted.home)).parameters.values())
    seed = parsed_signature(wanted.signature)
    common = [one for one in here if one.name in seed.parameters]
    added = [one for one in here if one.name not in seed.parameters]

    assert [one.name for one in common] == list(seed.parameters)
    for one in common:
        check_parameter(one, seed.parameters[one.name], wanted.here.get(one.name))
    if wanted.added != ("*",):
        assert tuple(one.name for one in added) == wanted.added
    for one in added:
        assert one.default is not inspect.Parameter.empty, f"{one.name} has no default"
        assert one.kind is inspect.Parameter.KEYWORD_ONLY or here.index(one) >= len(common), f"{one.name} is in the way"
    if seed.return_annotation is not inspect.Signature.empty:
        returned = inspect.signature(at(wanted.home)).return_annotation
        assert normal(returned) == normal(wanted.here.get("return", seed.return_annotation))


@check.register
def _(wanted: names.Fields, name: str) -> None:
    check_fields(at(wanted.home), wanted.fields)


@check.register
def _(wanted: names.Event, name: str) -> None:
    model = at(wanted.home)

    assert model in CONTRACT
    assert model.model_fields["event"].default == wanted.event
    check_fields(model, (f"event: Literal['{wanted.event}'] = ...", *wanted.fields))
    assert (ROOT / "docs/schemas" / f"{model.__name__}.json").is_file()


@check.register
def _(wanted: names.Route, name: str) -> None:
    assert wanted.path in openapi()["paths"], f"no route {wanted.path}"
    operation = openapi()["paths"][wanted.path].get(wanted.method)

    assert operation is not None, f"{wanted.path} has no {wanted.method.upper()}"
    assert set(wanted.parameters) <= {parameter["name"] for parameter in operation.get("parameters", ())}
    assert set(wanted.body) <= properties_of(operation.get("requestBody", {}))
    assert set(wanted.answer) <= properties_of(operation["responses"]["200"])


@check.register
def _(wanted: names.Raises, name: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        at(wanted.home)(*wanted.arguments)
    assert wanted.message in (None, str(caught.value))


@check.register
def _(wanted: names.Value, name: str) -> None:
    found = at(wanted.home)
    assert isinstance(found, wanted.value) if isinstance(wanted.value, type) else found == wanted.value


@check.register
def _(wanted: names.Tool, name: str) -> None:
    definition = standard_tools().get(name)
    schema = definition.shown()["params_schema"]

    assert [one for one in schema["properties"] if one in wanted.parameters] == list(wanted.parameters)
    assert sorted(schema.get("required", ())) == sorted(wanted.required)
    assert (definition.execute_deferred is not None) == wanted.deferred


@check.register
def _(wanted: names.Agent, name: str) -> None:
    assert set(wanted.tools) <= set(default_roster().agent("default", name).tools)


@check.register
def _(wanted: names.Builtin, name: str) -> None:
    assert name in BUILTINS
    assert (name in BuiltinTools.read({}).enabled) == wanted.enabled
    assert inspect.isclass(getattr(import_module("agents"), name))


@check.register
def _(wanted: names.Text, name: str) -> None:
    assert wanted.text in (ROOT / wanted.path).read_text(encoding="utf-8")


@check.register
def _(wanted: names.Sketch, name: str) -> None:
    assert len(wanted.why) >= REASON_MIN_CHARS


def check_variable(name: str, wanted: names.Variable, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The reader gives the value when the variable is set, and something else when it is not."""
    text = wanted.value
    if in_file := FILE_VALUE.fullmatch(text):
        (folder / "value").write_text(in_file[1])
        text = str(folder / "value")
    monkeypatch.setenv(name, text)
    assert attribute(at(wanted.reader)(*wanted.arguments), wanted.attribute) == wanted.result

    monkeypatch.delenv(name)
    try:
        unset = attribute(at(wanted.reader)(*wanted.arguments), wanted.attribute)
    except ValueError:
        return
    assert unset != wanted.result


def check_returns(wanted: names.Returns, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in wanted.environment.items():
        monkeypatch.setenv(name, value)
    assert attribute(at(wanted.home)(*wanted.arguments, **wanted.named), wanted.attribute) == wanted.result


# --- how it is looked up -----------------------------------------------------------------------------------------


def at(home: str) -> Any:
    """The object at `module:attribute.attribute`."""
    module, _, path = home.partition(":")
    return attribute(import_module(module), path)


def attribute(value: Any, path: str | None) -> Any:
    return reduce(getattr, path.split("."), value) if path else value


def parsed_signature(text: str) -> inspect.Signature:
    """The signature that a seed writes, with its annotations as text."""
    scope: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef written{text}: ...", scope)
    return inspect.signature(scope["written"])


def check_parameter(here: inspect.Parameter, seed: inspect.Parameter, differs: str | None) -> None:
    """Kind, annotation and default of a parameter; `differs` is `annotation` or `annotation = default`."""
    annotation, _, default = (differs or "").partition(" = ")
    expected_default = ast.literal_eval(default) if default else seed.default
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD

    assert here.kind is seed.kind or (here.kind, seed.kind) == (positional, inspect.Parameter.KEYWORD_ONLY)
    if differs or seed.annotation is not inspect.Parameter.empty:
        assert normal(here.annotation) == normal(annotation or seed.annotation)
        assert here.default == expected_default


def normal(annotation: Any) -> str:
    """An annotation as comparable text: no module names, one spelling."""
    # Annotations are text where they are postponed, so an alias of a type that a seed writes out is replaced by hand.
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"~|\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text).replace("NoneType", "None")
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    text = re.sub(r"\bJsonObject\b", "dict[str, Any]", text)
    return ast.unparse(parse_module(text))


def check_fields(model: type[Any], wanted: tuple[str, ...]) -> None:
    found = dict(fields_of(model))
    for line in wanted:
        name, _, rest = line.partition(": ")
        annotation, _, default = rest.partition(" = ")
        assert name in found, f"{model.__name__} has no field {name}"
        here, required = found[name]
        assert required == (not default), f"{name} is {'required' if required else 'optional'}"
        assert annotation == "_" or normal(annotation) == here


def fields_of(model: type[Any]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Name → annotation as text, and whether the field is required."""
    if issubclass(model, BaseModel):
        for name, found in model.model_fields.items():
            yield name, (normal(found.annotation), found.is_required())
        return
    missing = dataclasses.MISSING
    hints = get_type_hints(model)  # without what `Annotated` adds to a type
    for one in dataclasses.fields(model):
        yield one.name, (normal(hints[one.name]), one.default is missing and one.default_factory is missing)


@lru_cache(maxsize=1)
def openapi() -> Mapping[str, Any]:
    return create_app(MemoryBus()).openapi()


def properties_of(part: Mapping[str, Any]) -> set[str]:
    """The fields of a request or a response, through references. Without `format`, the first alternative holds."""
    schema = part.get("content", {}).get("application/json", {}).get("schema", {})
    schema = schema["anyOf"][0] if "anyOf" in schema else schema
    if "$ref" in schema:
        schema = openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return set(schema.get("properties", ()))
