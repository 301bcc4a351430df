"""Decisions that take several operations, written once for both faces.

A flow is a generator: it yields operations, is sent their results (or has their errors raised inside it), and returns
what it found. `run` drives one on this thread, `arun` on an event loop.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation
from magent2.errors import Magent2Error

R = TypeVar("R")
Flow: TypeAlias = Generator[Operation[Any], Any, R]


def run(bus: Engine, flow: Flow[R]) -> R:
    try:
        operation = next(flow)
        while True:
            try:
                result = bus.call(operation)
            except Magent2Error as error:
                operation = flow.throw(error)
            else:
                operation = flow.send(result)
    except StopIteration as end:
        found: R = end.value
        return found


async def arun(bus: Engine, flow: Flow[R]) -> R:
    try:
        operation = next(flow)
        while True:
            try:
                result = await bus.acall(operation)
            except Magent2Error as error:
                operation = flow.throw(error)
            else:
                operation = flow.send(result)
    except StopIteration as end:
        found: R = end.value
        return found
