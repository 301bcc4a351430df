"""`Client` is generated from `AsyncClient`: same methods, same signatures, same docstrings."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from magent2.client import AsyncClient, Client
from tests.support.forked_processes import ROOT

SYNC_NAMES = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def methods(client: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(client).items() if inspect.isfunction(value)}


def signature(method: Callable[..., Any]) -> str:
    return re.sub(r"Async(?=Generator|ApprovalCallback)", "", str(inspect.signature(method)))


def test_the_generated_client_is_current() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "sync-client"), "-"]
    generated = subprocess.run(script, capture_output=True, text=True, check=True).stdout

    assert (ROOT / "magent2/client/sync_client.py").read_text() == generated, "run `make sync-client`"


def test_both_clients_have_the_same_methods() -> None:
    assert [SYNC_NAMES.get(name, name) for name in methods(AsyncClient)] == list(methods(Client))


@pytest.mark.parametrize("name", methods(AsyncClient))
def test_a_method_has_the_same_signature_and_docstring_in_both_clients(name: str) -> None:
    asynchronous, synchronous = methods(AsyncClient)[name], methods(Client)[SYNC_NAMES.get(name, name)]

    assert signature(asynchronous) == signature(synchronous)
    assert inspect.getdoc(asynchronous) == inspect.getdoc(synchronous)


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_every_public_method_says_what_it_does(client: type) -> None:
    assert [name for name, method in methods(client).items() if name[0] != "_" and not method.__doc__] == []
