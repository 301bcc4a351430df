"""`make stats`: what it counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

MODULE = '''"""A module."""

from typing import Any

# why
ITEM = dict[str, Any]


class Same:
    def take(self, item: "Any") -> ITEM:
        """Two lines

        with a blank one between."""
        return _once(item)


def _once(item: Any) -> ITEM:
    return item
'''


def stats(root: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "scripts/stats", "--json", "--root", str(root), *options]
    found: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=ROOT, text=True))
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "magent2").mkdir()
    (tmp_path / "magent2/__init__.py").write_text("")
    (tmp_path / "magent2/one.py").write_text(MODULE)
    (tmp_path / "magent2/two.py").write_text("class Same:\n    pass\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["pydantic>=2"]\n')
    return tmp_path


def test_every_line_is_of_one_kind(checkout: Path) -> None:
    found = stats(checkout)

    kinds = [found[kind] for kind in ("code", "docstrings", "comments", "blank")]
    assert found["files"] == 3
    assert sum(kinds) == found["lines"] == 20
    assert kinds == [9, 4, 1, 6]


def test_uses_of_any_and_of_its_aliases_are_counted_apart(checkout: Path) -> None:
    found = stats(checkout)

    assert (found["any_uses"], found["any_alias_uses"]) == (3, 2)


def test_what_the_house_does_not_want_is_listed(checkout: Path) -> None:
    found = stats(checkout)

    assert found["shared_class_names"] == {"Same": ["one.py:9", "two.py:1"]}
    assert found["short_private_functions_called_once"] == ["one.py:17 _once"]
    assert found["files_under_60_lines"] == ["one.py", "two.py"]
    assert found["runtime_dependencies"] == ["pydantic>=2"]


@pytest.mark.soak  # half a minute, for a command that nothing else depends on
def test_the_four_paths_are_followed_from_their_beginning_to_their_end() -> None:
    send, token, tool, block = stats(ROOT, "--paths")["paths"]

    entered = [name for hop in send["entered"]["hops"] for name in hop["functions"]]
    assert entered[-1].endswith((".call", ".acall"))
    assert token["handed"]["hops"][0]["file"].startswith("runner/")
    assert any(hop["file"].startswith("gateway/") for hop in token["handed"]["hops"])
    for path in (tool, block):
        assert any("chat" in hop["file"] for hop in path["handed"]["hops"])
