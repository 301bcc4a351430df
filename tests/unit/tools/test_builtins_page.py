"""The requirements in docs/builtin-tools.md: every module member and every test that they name exists."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.tools.builtins import BUILTINS
from tests.support.source import parse_module

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "builtin-tools.md").read_text()
TESTS = "tests/unit/tools/test_builtins.py"
ENTRY = re.compile(r"^- \*\*(.+?)\.\*\*\n  Code: (.+?)\n  Tests: (.+?)(?=\n- |\n\n|\Z)", re.M | re.S)
SETTINGS = {*re.findall(r"[A-Z_]{4,}", (ROOT / "magent2/tools/builtins.py").read_text()), "OPENAI_API_KEY"}


def _names(path: Path) -> Iterator[str]:
    """Yield the names that a module defines, as pages write them."""
    for node in parse_module(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from (node.name, f"{path.stem}.{node.name}")
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for name in _members(node))


def _members(node: ast.ClassDef) -> Iterator[str]:
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id


@functools.cache
def _package_names() -> frozenset[str]:
    return frozenset(name for path in (ROOT / "magent2").rglob("*.py") for name in _names(path))


def duties() -> list[tuple[str, str, str, str]]:
    """Return (tool, duty, code, tests) of each entry below the headings of "Requirements"."""
    found = []
    for section in PAGE.partition("## Requirements")[2].split("\n### ")[1:]:
        tool, _, entries = section.partition("\n")
        for duty, code, tests in ENTRY.findall(entries):
            found.append((tool, duty, code, tests))
    return found


def test_every_tool_has_a_duty() -> None:
    assert {tool for tool, *_ in duties()} == {"All tools", *BUILTINS}


@pytest.mark.parametrize("duty", duties(), ids=lambda duty: f"{duty[0]}, {duty[1]}")
def test_the_code_and_the_test_of_a_duty_are_there(duty: tuple[str, str, str, str]) -> None:
    _, _, code, test = duty
    names = re.findall(r"`(\w+(?:\.\w+)*)`", code)
    files = re.findall(r"`(tests/\S+\.py)`", test)
    tests = re.findall(r"`(test_\w+)`", test)

    assert tests
    assert names
    for name in names:
        assert _is_there(name), name
    known = "".join((ROOT / file).read_text() for file in {TESTS, *files})
    for name in tests:
        assert f"def {name}(" in known, name


def _is_there(name: str) -> bool:
    """Say whether the package defines `name`, `Class.name` or `module.name`, or the tools read such a setting."""
    return name in _package_names() or (name.isupper() and name in SETTINGS)
