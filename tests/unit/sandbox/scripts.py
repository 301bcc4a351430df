"""Random blocks, and what must have been delivered after each: a reference model in a few lines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

NESTED_MAX = 2


@dataclass(frozen=True)
class Send:
    number: int
    now: bool


@dataclass(frozen=True)
class Fail:
    pass


@dataclass(frozen=True)
class Try:
    """Goes on after a failure inside."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Nested:
    """A block in the block."""

    steps: tuple[Step, ...]


Step: TypeAlias = Send | Fail | Try | Nested


class Writer:
    """Makes scripts up; every message has a number of its own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0

    def steps(self, depth: int = 0, nested: int = 0) -> tuple[Step, ...]:
        return tuple(self._step(depth, nested) for _ in range(self._random.randint(1, 4 if depth else 6)))

    def _step(self, depth: int, nested: int) -> Step:
        kinds = ["send"] * 6 + ["now"] * 2 + ["fail"]
        kinds += ["try", "try"] if depth < 3 else []
        kinds += ["nested", "nested"] if depth < 3 and nested < NESTED_MAX else []
        kind = self._random.choice(kinds)
        if kind in ("send", "now"):
            self._number += 1
            return Send(self._number, kind == "now")
        if kind == "fail":
            return Fail()
        return Try(self.steps(depth + 1, nested)) if kind == "try" else Nested(self.steps(depth + 1, nested + 1))


def code_of(steps: Sequence[Step], indent: str = "") -> str:
    return "\n".join(_line(step, indent) for step in steps)


def _line(step: Step, indent: str) -> str:
    if isinstance(step, Send):
        return f'{indent}chat_send("agent:Bea", "m{step.number}", now={step.now})'
    if isinstance(step, Fail):
        return f'{indent}raise ValueError("made up")'
    if isinstance(step, Nested):
        return f"{indent}run_python({code_of(step.steps)!r})"
    inner = code_of(step.steps, indent + "    ")
    return f"{indent}try:\n{inner}\n{indent}except Exception:\n{indent}    pass"


class Failed(Exception):
    pass


@dataclass
class Model:
    """What such a script does."""

    left: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._play(step)

    def _play(self, step: Step) -> None:
        if isinstance(step, Send):
            (self.left if step.now else self.held).append(f"m{step.number}")
        elif isinstance(step, Fail):
            raise Failed
        elif isinstance(step, Try):
            self._try(step)
        else:
            self._nest(step)

    def _try(self, step: Try) -> None:
        try:
            self.play(step.steps)
        except Failed:
            return

    def _nest(self, step: Nested) -> None:
        mark = len(self.held)
        try:
            self.play(step.steps)
        except Failed:
            del self.held[mark:]
            raise


@dataclass(frozen=True)
class Expected:
    delivered: list[str]
    status: str


def expected(steps: Sequence[Step]) -> Expected:
    model = Model()
    try:
        model.play(steps)
    except Failed:
        count = len(model.held)
        return Expected(model.left, f"\n\n[Messages: {count} NOT sent (script failed)]" if count else "")
    count = len(model.held)
    return Expected(model.left + model.held, f"\n\n[Messages: {count} sent]" if count else "")
