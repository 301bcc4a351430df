"""Guardrails of agents: functions of the team that check the input or the output of a run.

A guardrail is one of the SDK (`@input_guardrail`, `@output_guardrail`), or a plain function with the same parameters.
A plain input guardrail is done before the model is called; one of the SDK decides that itself (`run_in_parallel`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from agents import GuardrailFunctionOutput, InputGuardrail, OutputGuardrail

from magent2.errors import SettingsError
from magent2.import_path import import_attribute


def input_guardrail(path: str, folder: Path | None) -> InputGuardrail[Any]:
    """The input guardrail at `module:attribute`. Modules are looked up in `folder` first. Raises `SettingsError`."""
    found = _load(path, folder)
    if isinstance(found, InputGuardrail):
        return found
    if isinstance(found, OutputGuardrail):
        raise SettingsError(f"guardrail {path!r} checks outputs; list it in output_guardrails")
    return InputGuardrail(guardrail_function=_function(path, found), name=path, run_in_parallel=False)


def output_guardrail(path: str, folder: Path | None) -> OutputGuardrail[Any]:
    """The output guardrail at `module:attribute`."""
    found = _load(path, folder)
    if isinstance(found, OutputGuardrail):
        return found
    if isinstance(found, InputGuardrail):
        raise SettingsError(f"guardrail {path!r} checks inputs; list it in input_guardrails")
    return OutputGuardrail(guardrail_function=_function(path, found), name=path)


def _load(path: str, folder: Path | None) -> object:
    return import_attribute(path, folder, what=f"guardrail {path!r}")


def _function(path: str, found: object) -> Callable[..., GuardrailFunctionOutput]:
    if not callable(found):
        raise SettingsError(f"guardrail {path!r} is a {type(found).__name__}, not a function")
    return cast("Callable[..., GuardrailFunctionOutput]", found)
