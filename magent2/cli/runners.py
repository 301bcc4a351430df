"""Which runner a command starts, and how it is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from magent2.runner.config import RunnerConfig
    from magent2.worker.drive import Runner

F = TypeVar("F", bound=Callable[..., Any])

OFFLINE = ("demo", "local")  # models that need no key
VARIABLE = "AGENT_MODEL"


def model_option(command: F) -> F:
    return click.option("--model", metavar="MODEL", help=f"demo, local, or a model's name.  [env var: {VARIABLE}]")(
        command
    )


def scripted() -> str | None:
    """A model that needs no key, when the environment names one."""
    name = os.environ.get(VARIABLE, "").strip()
    return name if name in OFFLINE else None


def choose_runner(model: str | None, config: RunnerConfig) -> tuple[Runner, str]:
    """The runner of `serve` and its description; without a key and without a model it is the demo model."""
    from magent2.runner.select import DEMO, select_runner

    named = model or config.model
    if named in OFFLINE:
        return select_runner(named, config), f"the {named} model"
    if named is None and config.api_key is None:
        return select_runner(DEMO, config), "the demo model, because OPENAI_API_KEY is not set"
    return select_runner(named, config), f"model {named or 'of the SDK by default'}"
