"""What the documents print as code runs as printed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from magent2.errors import IdConflict

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


def statements(page: str) -> list[ast.stmt]:
    """Every plain statement of a page's examples; what has to be awaited is left to other tests."""
    blocks = [
        block for block in BLOCK.findall((ROOT / page).read_text()) if "async " not in block and "await " not in block
    ]
    return [statement for block in blocks for statement in ast.parse(block).body]


@pytest.mark.parametrize("page", ["docs/the-log.md", "docs/writing-a-bus.md"])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGENT2_DATA_DIR", str(tmp_path))
    names: dict[str, Any] = {"MyBus": object}
    ran = 0

    for statement in statements(page):
        code = compile(ast.Module([statement], []), page, "exec")
        if "another" in ast.unparse(statement):  # the page says that this one is refused
            with pytest.raises(IdConflict):
                exec(code, names)
        else:
            exec(code, names)
        ran += 1

    assert ran >= 3
    if "bus" in names:
        names["bus"].close()
