"""Tables and short texts."""

from __future__ import annotations

import pytest

from magent2.cli.output import print_table, shortened


def test_columns_are_as_wide_as_their_longest_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "LONG"), [("wide cell", 1), ("x", "a\nb")])

    assert capsys.readouterr().out == "A          LONG\nwide cell  1\nx          a b\n"


def test_texts_are_shortened() -> None:
    assert shortened("a  b\nc", 5) == "a b c"
    assert shortened("abcdef", 5) == "abcd…"
