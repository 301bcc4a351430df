"""Which model a command starts with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

VARIABLE = "AGENT_MODEL"


def model_option(command: F) -> F:
    return click.option("--model", metavar="MODEL", help=f"demo, local, or a model's name.  [env var: {VARIABLE}]")(
        command
    )
