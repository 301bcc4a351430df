from __future__ import annotations

import inspect
import re

import pytest

from magent2 import errors
from magent2.errors import InvalidInput, Magent2Error, MalformedRecord, NameTaken

CLASSES = {
    name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Magent2Error)
}


def drawn() -> dict[str, str]:
    """Each error in the tree of the module's docstring, with its parent."""
    parents: dict[str, str] = {}
    branch = ["Magent2Error"]  # from the root to the last error
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│ ]*)[├└]── (\w+)", line)
        if found:
            depth = len(found[1]) // 4 + 1
            branch[depth:] = [found[2]]
            parents[found[2]] = branch[depth - 1]
    return parents


def test_the_tree_on_top_of_the_module_is_the_tree_of_the_classes() -> None:
    assert drawn() == {name: kind.__bases__[0].__name__ for name, kind in CLASSES.items() if kind is not Magent2Error}


@pytest.mark.parametrize("name", CLASSES)
def test_a_refusal_of_input_is_a_value_error_and_so_is_a_taken_name_and_nothing_else(name: str) -> None:
    assert issubclass(CLASSES[name], ValueError) == issubclass(CLASSES[name], InvalidInput | NameTaken)


def test_a_malformed_record_says_how_to_get_rid_of_it() -> None:
    error = MalformedRecord("chat:A", 7, "not JSON")

    assert (error.topic, error.seq) == ("chat:A", 7)
    assert "not JSON" in str(error)
    assert "erase it, or read on after 7" in str(error)
